#include "aten/device_specific_ops.h"

#include <ATen/Functions.h>

#include "dispatch/graph_size_limit.h"
#include "dispatch/record.h"
#include "tensor/xla_tensor.h"

namespace torch_xla {

using at::Tensor;

at::Tensor efficient_zeros(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                           std::optional<at::Layout> layout, std::optional<at::Device> device,
                           std::optional<bool> pin_memory) {
  return at::zeros_symint(size, dtype, layout, device, pin_memory);
}

std::tuple<at::Tensor, at::Tensor> weight_norm_backward(const at::Tensor& gradient, const at::Tensor& v,
                                                        const at::Tensor& g, const at::Tensor& norms, int64_t dim) {
  return at::_weight_norm_differentiable_backward(gradient, v, g, norms, dim);
}

void amp_unscale_(at::TensorList gradients, Tensor& found_inf, const Tensor& inv_scale) {
  static const OpPointer op("aten::_amp_foreach_non_finite_check_and_unscale");
  if (gradients.empty()) {
    return;
  }
  for (const Tensor& gradient : gradients) {
    require_xla(*op, gradient);
  }
  XlaTensor& found = require_xla(*op, found_inf);
  const NodePtr node = record_node(*op, {c10::IValue(gradients), c10::IValue(found_inf), c10::IValue(inv_scale)});
  for (size_t i = 0; i < gradients.size(); ++i) {
    require_xla(*op, gradients[i]).write(getitem_node(node, static_cast<uint32_t>(i)));
  }
  found.write(getitem_node(node, static_cast<uint32_t>(gradients.size())));
  count_pending(node->device);
}

Tensor& amp_update_scale_(Tensor& scale, Tensor& growth_tracker, const Tensor& found_inf, double growth_factor,
                          double backoff_factor, int64_t growth_interval) {
  static const OpPointer op("aten::_amp_update_scale");
  XlaTensor& target = require_xla(*op, scale);
  XlaTensor& tracker = require_xla(*op, growth_tracker);
  const NodePtr node = record_node(*op, {c10::IValue(scale), c10::IValue(growth_tracker), c10::IValue(found_inf),
                                         growth_factor, backoff_factor, growth_interval});
  target.write(getitem_node(node, 0));
  tracker.write(getitem_node(node, 1));
  count_pending(node->device);
  return scale;
}

void propagate_xla_data(const Tensor&, const Tensor&) {}

}  // namespace torch_xla
