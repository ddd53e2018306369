#include "storageless.h"

#include <ATen/Functions.h>

namespace torch_xla {

at::Tensor efficient_zeros(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                           std::optional<at::Device> device, std::optional<bool> pin_memory) {
  return at::zeros(size, dtype, layout, device, pin_memory);
}

bool has_same_storage_numel(const at::Tensor& self, const at::Tensor& other) { return self.numel() == other.numel(); }

at::Tensor new_zeros_with_same_feature_meta(const at::Tensor& self, const at::Tensor& other, int64_t batch_dims) {
  std::vector<int64_t> size(self.sizes().begin(), self.sizes().begin() + batch_dims);
  size.insert(size.end(), other.sizes().begin(), other.sizes().end());
  return at::zeros(size, self.options());
}

std::tuple<at::Tensor, at::Tensor> weight_norm_backward(const at::Tensor& gradient, const at::Tensor& v,
                                                        const at::Tensor& g, const at::Tensor& norms, int64_t dim) {
  return at::_weight_norm_differentiable_backward(gradient, v, g, norms, dim);
}

}  // namespace torch_xla
