// Convolutions and their gradients: oneDNN's, where torch chooses it.

#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/copy.h>

#include "handler.h"

namespace torch_xla::handlers {
namespace {

void convolution(const Tensors& in, Tensors& out, const Attributes& a) {
  const auto bias = in.size() > 2 ? std::optional(in[2]) : std::nullopt;
  out[0].copy_(at::convolution(in[0], in[1], bias, a.integers("stride"), a.integers("padding"), a.integers("dilation"),
                               a.flag("transposed"), a.integers("output_padding"), a.integer("groups")));
}

void convolution_backward(const Tensors& in, Tensors& out, const Attributes& a) {
  const auto mask = a.integers("mask");
  const int64_t channels = in[0].size(1);
  const auto made = at::convolution_backward(in[0], in[1], in[2], at::IntArrayRef(channels), a.integers("stride"),
                                             a.integers("padding"), a.integers("dilation"), a.flag("transposed"),
                                             a.integers("output_padding"), a.integer("groups"), flags(mask));
  const auto wanted = masked(out, mask);
  const auto give = [&](size_t i, const at::Tensor& value) {
    if (wanted[i] != nullptr) {
      wanted[i]->copy_(value);
    }
  };
  give(0, std::get<0>(made));
  give(1, std::get<1>(made));
  give(2, std::get<2>(made));
}

}  // namespace
}  // namespace torch_xla::handlers

TORCH_XLA_HANDLER(convolution, torch_xla::handlers::convolution)
TORCH_XLA_HANDLER(convolution_backward, torch_xla::handlers::convolution_backward)
