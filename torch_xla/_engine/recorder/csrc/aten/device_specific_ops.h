// Ops that torch writes anew for each kind of device: made of others here, or of nodes that compute all that they
// write.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace torch_xla {

// Zeros that other devices need no memory for; here the compiler sees to that.
at::Tensor efficient_zeros(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                           std::optional<at::Layout> layout, std::optional<at::Device> device,
                           std::optional<bool> pin_memory);

std::tuple<at::Tensor, at::Tensor> weight_norm_backward(const at::Tensor& gradient, const at::Tensor& v,
                                                        const at::Tensor& g, const at::Tensor& norms, int64_t dim);

// Gradient scaling: the gradients divided by the scale in place, and found_inf set where one is not finite.
void amp_unscale_(at::TensorList gradients, at::Tensor& found_inf, const at::Tensor& inv_scale);
at::Tensor& amp_update_scale_(at::Tensor& scale, at::Tensor& growth_tracker, const at::Tensor& found_inf,
                              double growth_factor, double backoff_factor, int64_t growth_interval);

// torch's functionalization calls it after in-place ops, for a recorder that tracks tensors by id.
void propagate_xla_data(const at::Tensor& input, const at::Tensor& output);

}  // namespace torch_xla
