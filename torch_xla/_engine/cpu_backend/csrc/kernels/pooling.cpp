// Gradients of pooling over fixed-size windows.

#include <ATen/ops/avg_pool2d_backward.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>

#include "ffi_handler.h"

namespace torch_xla::handlers {
namespace {

// The kernels read only the shape of the pooled tensor, which is the result's.
void max_pool_backward(const Tensors& in, Tensors& out, const Attributes& a) {
  at::max_pool2d_with_indices_backward_out(out[0], in[0], out[0], a.integers("kernel"), a.integers("stride"),
                                           a.integers("padding"), a.integers("dilation"), a.flag("ceil_mode"), in[1]);
}

std::optional<int64_t> divisor(const Attributes& a) {
  return a.has("divisor") ? std::optional(a.integer("divisor")) : std::nullopt;
}

void avg_pool_backward(const Tensors& in, Tensors& out, const Attributes& a) {
  at::avg_pool2d_backward_out(out[0], in[0], out[0], a.integers("kernel"), a.integers("stride"), a.integers("padding"),
                              a.flag("ceil_mode"), a.flag("count_pad"), divisor(a));
}

}  // namespace
}  // namespace torch_xla::handlers

TORCH_XLA_HANDLER(max_pool2d_with_indices_backward, torch_xla::handlers::max_pool_backward)
TORCH_XLA_HANDLER(avg_pool2d_backward, torch_xla::handlers::avg_pool_backward)
