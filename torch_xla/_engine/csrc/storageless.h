// Ops that torch writes anew for each kind of device, made of others here.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace torch_xla {

// Zeros that other devices need no memory for; here the compiler sees to that.
at::Tensor efficient_zeros(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                           std::optional<at::Device> device, std::optional<bool> pin_memory);

// Forward-mode gradients ask these two of storages, to lay out a tangent as its primal is. Tensors here have none, and
// are laid out in one way only.
bool has_same_storage_numel(const at::Tensor& self, const at::Tensor& other);
at::Tensor new_zeros_with_same_feature_meta(const at::Tensor& self, const at::Tensor& other, int64_t batch_dims);

std::tuple<at::Tensor, at::Tensor> weight_norm_backward(const at::Tensor& gradient, const at::Tensor& v,
                                                        const at::Tensor& g, const at::Tensor& norms, int64_t dim);

}  // namespace torch_xla
