#include "dispatch/out_variants.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <string>
#include <unordered_set>
#include <vector>

#include "compat/torch_internal.h"
#include "dispatch/cpu_fallback.h"
#include "dispatch/graph_size_limit.h"
#include "dispatch/record.h"
#include "dispatch/strided_layout.h"
#include "inference/output_spec_cache.h"
#include "inference/random_checks.h"
#include "tensor/xla_tensor.h"

namespace torch_xla {
namespace {

using at::Tensor;

// Sets the dtype argument of reductions without one to that of `out`: they accumulate in it.
void set_dtype_from_out(const Op& functional, const Tensor& out, torch::jit::Stack* stack) {
  static const std::unordered_set<std::string> reductions{
      "aten::sum",          "aten::sum.dim_IntList", "aten::mean",   "aten::mean.dim", "aten::prod",
      "aten::prod.dim_int", "aten::nansum",          "aten::cumsum", "aten::cumprod"};
  if (reductions.count(functional.name) == 0) {
    return;
  }
  for (size_t i = 0; i < functional.kinds.size(); ++i) {
    c10::IValue& value = torch::jit::peek(*stack, i, functional.kinds.size());
    if (functional.kinds[i] == ArgKind::kDtype && value.isNone()) {
      value = c10::IValue(static_cast<int64_t>(out.scalar_type()));
    }
  }
}

// Returns, for each target, whether the call reads it: such a target is not resized.
std::vector<bool> find_read_targets(const std::vector<Tensor>& targets, c10::ArrayRef<c10::IValue> arguments) {
  std::vector<bool> found;
  for (const Tensor& target : targets) {
    found.push_back(std::any_of(arguments.begin(), arguments.end(), [&](const c10::IValue& argument) {
      return argument.isTensor() && argument.toTensor().is_same(target);
    }));
  }
  return found;
}

bool on_one_device(c10::ArrayRef<c10::IValue> arguments) {
  int8_t first = -1;
  for (const c10::IValue& argument : arguments) {
    for (const c10::IValue& element : argument.isTensorList() ? argument.toListRef() : c10::ArrayRef<c10::IValue>()) {
      const XlaTensor* x = maybe_xla(element.toTensor());
      if (x == nullptr || (first >= 0 && x->device_index() != first)) {
        return false;
      }
      first = x->device_index();
    }
  }
  return true;
}

}  // namespace

void record_out(const Op& op, torch::jit::Stack* stack) {
  const size_t outs = op.handle.schema().returns().size();
  std::vector<Tensor> targets;
  for (const auto& target : torch::jit::last(*stack, outs)) {
    targets.push_back(target.toTensor());
    require_xla(op, targets.back(), op.kinds.size() - outs + targets.size() - 1);
  }
  const auto arguments = torch::jit::last(*stack, op.kinds.size());
  for (const Tensor& target : targets) {
    check_no_partial_overlap(require_xla(op, target), arguments.slice(0, arguments.size() - outs));
  }
  // Saved if a dtype may differ from the result's: only the kernels know which conversions they reject.
  const bool same_dtype =
      outs == 1 && arguments[0].isTensor() && arguments[0].toTensor().scalar_type() == targets[0].scalar_type();
  const std::vector<c10::IValue> saved_arguments(same_dtype ? arguments.end() : arguments.begin(), arguments.end());
  torch::jit::drop(*stack, outs);
  for (size_t i = op.kinds.size() - outs; i < op.functional->kinds.size(); ++i) {  // a factory's dtype, device, ...
    const ArgKind kind = op.functional->kinds[i];
    stack->push_back(kind == ArgKind::kDtype    ? c10::IValue(static_cast<int64_t>(targets[0].scalar_type()))
                     : kind == ArgKind::kDevice ? c10::IValue(targets[0].device())
                                                : c10::IValue());
  }
  set_dtype_from_out(*op.functional, targets[0], stack);
  const std::vector<bool> read = find_read_targets(targets, torch::jit::last(*stack, op.functional->kinds.size()));
  record(*op.functional, stack);
  if (C10_UNLIKELY(!saved_arguments.empty())) {
    check_out_dtypes(op, saved_arguments, torch::jit::last(*stack, outs));
  }
  for (size_t i = 0; i < outs; ++i) {
    const Tensor result = torch::jit::peek(*stack, i, outs).toTensor();
    TORCH_CHECK(result.device() == targets[i].device(), op.name, ": expected all tensors on one device, but found ",
                result.device(), " and ", targets[i].device(), " (argument '", op.arg_names[op.kinds.size() - outs + i],
                "')");
    if (C10_UNLIKELY(op.functional->random)) {
      check_random_out(*op.functional, targets[i].scalar_type());
    } else {
      TORCH_CHECK(c10::canCast(result.scalar_type(), targets[i].scalar_type()), "result type ",
                  at::toString(result.scalar_type()), " can't be cast to the desired output type ",
                  at::toString(targets[i].scalar_type()));
    }
    if (targets[i].sizes() != result.sizes()) {
      TORCH_CHECK(!read[i], "output with shape ", targets[i].sizes(), " doesn't match the broadcast shape ",
                  result.sizes());
      compat::resize_output(targets[i], result.sizes());
    }
    XlaTensor& target = require_xla(op, targets[i]);
    target.write(cast(require_xla(op, result).value(), targets[i].scalar_type()));
  }
  torch::jit::drop(*stack, outs);
  for (auto& target : targets) {
    stack->emplace_back(std::move(target));
  }
}

void record_extra_mutations(const Op& op, torch::jit::Stack* stack) {
  const auto& schema = op.handle.schema();
  const size_t returns = schema.returns().size();
  std::vector<Tensor> targets;  // in the order of their new values: the returned one first
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    const auto& argument = torch::jit::peek(*stack, i, schema.arguments().size());
    if (alias != nullptr && alias->isWrite()) {
      targets.push_back(argument.isTensor() ? argument.toTensor() : Tensor());
    }
  }
  record(*op.functional, stack);
  const size_t results = op.functional->handle.schema().returns().size();
  const size_t first = results - targets.size();
  for (size_t i = 0; i < targets.size(); ++i) {
    const Tensor result = torch::jit::peek(*stack, first + i, results).toTensor();
    if (targets[i].defined() && result.defined()) {
      require_xla(op, targets[i]).write(cast(require_xla(op, result).value(), targets[i].scalar_type()));
    }
  }
  torch::jit::drop(*stack, results - returns);
  if (schema.returns()[0].alias_info() != nullptr) {
    torch::jit::peek(*stack, 0, returns) = targets[0];
  }
}

void record_fused(const Op& op, torch::jit::Stack* stack) {
  const auto& schema = op.handle.schema().arguments();
  const c10::ArrayRef<c10::IValue> arguments = torch::jit::last(*stack, schema.size());
  if (!on_one_device(arguments)) {
    run_on_cpu(op.handle, stack);
    return;
  }
  flush_if_over_limit();
  const bool scaled = !arguments[schema.size() - 2].isNone();
  if (!arguments[0].toListRef().empty()) {
    const NodePtr node = record_node(*op.functional, arguments);
    uint32_t result = 0;
    // One of the schemas also marks state_steps as written, but the caller increments them.
    for (size_t i = 0; schema[i].alias_info() != nullptr && schema[i].name() != "state_steps"; ++i) {
      const bool changes = i != 1 || scaled;  // gradients change only if they are unscaled
      for (const c10::IValue& element : arguments[i].toListRef()) {
        if (changes) {
          require_xla(op, element.toTensor()).write(getitem_node(node, result));
        }
        ++result;
      }
    }
    count_pending(node->device);
  }
  torch::jit::drop(*stack, schema.size());
}

}  // namespace torch_xla
