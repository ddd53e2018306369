// Attention kernels in blocks, without materializing the weights of all pairs.

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/copy.h>

#include "ffi_handler.h"

namespace torch_xla::handlers {
namespace {

void attention(const Tensors& in, Tensors& out, const Attributes& a) {
  const auto bias = in.size() > 3 ? std::optional(in[3]) : std::nullopt;
  const auto results = at::_scaled_dot_product_flash_attention_for_cpu(in[0], in[1], in[2], 0.0, a.flag("causal"), bias,
                                                                       a.real("scale"));
  out[0].copy_(std::get<0>(results));
  out[1].copy_(std::get<1>(results));
}

void attention_backward(const Tensors& in, Tensors& out, const Attributes& a) {
  const auto bias = in.size() > 6 ? std::optional(in[6]) : std::nullopt;
  const auto results = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      in[0], in[1], in[2], in[3], in[4], in[5], 0.0, a.flag("causal"), bias, a.real("scale"));
  out[0].copy_(std::get<0>(results));
  out[1].copy_(std::get<1>(results));
  out[2].copy_(std::get<2>(results));
}

}  // namespace
}  // namespace torch_xla::handlers

TORCH_XLA_HANDLER(attention, torch_xla::handlers::attention)
TORCH_XLA_HANDLER(attention_backward, torch_xla::handlers::attention_backward)
