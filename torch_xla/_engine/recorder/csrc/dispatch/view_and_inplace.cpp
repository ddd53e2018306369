#include "dispatch/view_and_inplace.h"

#include <ATen/WrapDimUtils.h>
#include <c10/util/accumulate.h>

#include <algorithm>

#include "dispatch/cpu_fallback.h"
#include "dispatch/graph_size_limit.h"
#include "dispatch/record.h"
#include "dispatch/strided_layout.h"
#include "inference/output_spec_cache.h"
#include "tensor/xla_tensor.h"

namespace torch_xla {
namespace {

using at::Tensor;

int64_t numel(const Shape& shape) { return c10::multiply_integers(shape.sizes); }

bool overlaps(const Op& op, const XlaTensor& base, const Shape& view, c10::ArrayRef<c10::IValue> arguments) {
  if (!op.may_overlap || view.sizes.empty()) {
    return false;
  }
  if (op.name == "aten::as_strided") {
    return strides_overlap(view.sizes, arguments[2].toIntVector());
  }
  if (op.name == "aten::unfold") {
    const int64_t dim = at::maybe_wrap_dim(arguments[1].toInt(), base.dim());
    return arguments[2].toInt() > arguments[3].toInt() && base.dim() > 0 && view.sizes[dim] > 1;
  }
  return numel(view) > base.numel();
}

// Returns whether as_strided's arguments are valid; if not, its meta function raises.
bool is_within_torch(c10::ArrayRef<c10::IValue> arguments) {
  const auto none_below_zero = [](const std::vector<int64_t>& numbers) {
    return std::all_of(numbers.begin(), numbers.end(), [](int64_t n) { return n >= 0; });
  };
  const std::vector<int64_t> sizes = arguments[1].toIntVector();
  const std::vector<int64_t> strides = arguments[2].toIntVector();
  return sizes.size() == strides.size() && none_below_zero(sizes) && none_below_zero(strides) &&
         (arguments[3].isNone() || arguments[3].toInt() >= 0);
}

// torch 2.11's meta function accepts negative strides.
void check_strides(c10::ArrayRef<c10::IValue> arguments) {
  const std::vector<int64_t> strides = arguments[2].toIntVector();
  TORCH_CHECK(arguments[1].toIntVector().size() != strides.size() ||
                  std::all_of(strides.begin(), strides.end(), [](int64_t stride) { return stride >= 0; }),
              "as_strided: Negative strides are not supported at the moment, got strides: ", at::IntArrayRef(strides));
}

}  // namespace

at::Tensor record_one_view(const Op& op, XlaTensor& base, c10::ArrayRef<c10::IValue> arguments) {
  flush_if_over_limit();
  const NodePtr node = record_node(op, arguments);
  const int8_t device = node->device;
  Tensor view = base.make_view(node, overlaps(op, base, node->shape(), arguments));
  count_pending(device);
  return view;
}

void record_view(const Op& op, torch::jit::Stack* stack) {
  const size_t n = op.kinds.size();
  const Tensor self = torch::jit::peek(*stack, 0, n).toTensor();
  XlaTensor& base = require_xla(op, self);
  const bool is_strided = op.name == "aten::as_strided";
  if (is_strided && is_within_torch(torch::jit::last(*stack, n))) {
    // Strides and offset refer to the memory, not to the view.
    Tensor view = view_as_strided(base, torch::jit::peek(*stack, 1, n).toIntVector(),
                                  torch::jit::peek(*stack, 2, n).toIntVector(),
                                  torch::jit::peek(*stack, 3, n).toOptional<int64_t>());
    torch::jit::drop(*stack, n);
    stack->emplace_back(std::move(view));
    return;
  }
  if (is_strided) {
    check_strides(torch::jit::last(*stack, n));
  }
  if (op.name == "aten::view.dtype") {
    check_view_as(base, torch::jit::peek(*stack, 1, n).toScalarType());
  }
  if (!op.returns_list) {
    Tensor view = record_one_view(op, base, torch::jit::last(*stack, n));
    torch::jit::drop(*stack, n);
    stack->emplace_back(std::move(view));
    return;
  }
  flush_if_over_limit();
  const NodePtr node = record_node(op, torch::jit::last(*stack, n));
  torch::jit::drop(*stack, n);
  c10::List<Tensor> list;
  list.reserve(node->output_spec->outs.size());
  for (uint32_t i = 0; i < node->output_spec->outs.size(); ++i) {
    list.push_back(base.make_view(getitem_node(node, i), false));
  }
  stack->emplace_back(std::move(list));
  count_pending(node->device);
}

void record_inplace(const Op& op, torch::jit::Stack* stack) {
  const size_t n = op.kinds.size();
  const Tensor self = torch::jit::peek(*stack, 0, n).toTensor();
  XlaTensor& target = require_xla(op, self);
  if (needs_cpu_fallback(op, torch::jit::last(*stack, n))) {
    run_on_cpu(op.handle, stack);
    return;
  }
  check_no_partial_overlap(target, torch::jit::last(*stack, n).slice(1));
  flush_if_over_limit();
  NodePtr node = record_node(op, torch::jit::last(*stack, n));
  torch::jit::drop(*stack, n);
  const int8_t device = node->device;
  const NodePtr before = C10_UNLIKELY(is_eager()) ? target.value() : NodePtr();
  target.write(std::move(node), op.uniform);
  stack->emplace_back(self);
  try {
    count_pending(device);
  } catch (...) {
    if (before) {  // eager execution failed: undo the write
      target.write(before);
    }
    throw;
  }
}

void record_inplace_view(const Op& op, torch::jit::Stack* stack) {
  const size_t n = op.kinds.size();
  const Tensor self = torch::jit::peek(*stack, 0, n).toTensor();
  XlaTensor& target = require_xla(op, self);
  record_view(*op.functional, stack);
  target.take_over(require_xla(op, torch::jit::pop(*stack).toTensor()));
  stack->emplace_back(self);
}

}  // namespace torch_xla
