#include "device_forms.h"

#include <ATen/Functions.h>

namespace torch_xla {

at::Tensor efficient_zeros(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                           std::optional<at::Layout> layout, std::optional<at::Device> device,
                           std::optional<bool> pin_memory) {
  return at::zeros_symint(size, dtype, layout, device, pin_memory);
}

std::tuple<at::Tensor, at::Tensor> weight_norm_backward(const at::Tensor& gradient, const at::Tensor& v,
                                                        const at::Tensor& g, const at::Tensor& norms, int64_t dim) {
  return at::_weight_norm_differentiable_backward(gradient, v, g, norms, dim);
}

}  // namespace torch_xla
