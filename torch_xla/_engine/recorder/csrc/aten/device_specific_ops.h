// Device-specific ops: ops that torch requires each device type to implement. Composed of other ops, or of nodes that
// compute all written values.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace torch_xla {

// Zeros without memory on other devices; on xla the compiler eliminates them.
at::Tensor efficient_zeros(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                           std::optional<at::Layout> layout, std::optional<at::Device> device,
                           std::optional<bool> pin_memory);

std::tuple<at::Tensor, at::Tensor> weight_norm_backward(const at::Tensor& gradient, const at::Tensor& v,
                                                        const at::Tensor& g, const at::Tensor& norms, int64_t dim);

// Gradient scaling: divides the gradients by the scale in place, and sets found_inf if one is not finite.
void amp_unscale_(at::TensorList gradients, at::Tensor& found_inf, const at::Tensor& inv_scale);
at::Tensor& amp_update_scale_(at::Tensor& scale, at::Tensor& growth_tracker, const at::Tensor& found_inf,
                              double growth_factor, double backoff_factor, int64_t growth_interval);

// Called by torch's functionalization after in-place ops, for recorders that track tensors by id; a no-op here.
void propagate_xla_data(const at::Tensor& input, const at::Tensor& output);

}  // namespace torch_xla
