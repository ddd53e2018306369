#include "dispatch/foreach.h"

#include <functional>

#include "compat/torch_internal.h"
#include "dispatch/graph_size_limit.h"
#include "dispatch/record.h"
#include "runtime/device.h"
#include "tensor/xla_tensor.h"

namespace torch_xla {
namespace {

void run_loop(const Op& op, torch::jit::Stack* stack) {
  op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

// Returns the id of the memory that a tensor shares; for an unshared one its address, which is no such id.
uint64_t storage_key(XlaTensor& x) {
  const uint64_t shared = x.storage_id();
  return shared != 0 ? shared : reinterpret_cast<uint64_t>(&x);
}

// The memory that a call writes to, with the position of each target in the list.
class WriteTargets {
 public:
  // Returns false if the loop cannot be one node.
  bool add(c10::ArrayRef<c10::IValue> targets) {
    positions_.reserve(2 * targets.size());
    for (size_t i = 0; i < targets.size(); ++i) {
      XlaTensor* x = maybe_xla(targets[i].toTensor());
      if (x == nullptr || x->is_view() || (i > 0 && x->device_index() != device_)) {
        return false;
      }
      device_ = x->device_index();
      if (!positions_.emplace(storage_key(*x), i).second) {
        return false;
      }
    }
    return !targets.empty();
  }

  // Returns whether the element at that position may read this tensor: the call has not changed it before.
  bool may_read(const at::Tensor& t, size_t position) const {
    XlaTensor* x = maybe_xla(t);
    if (x == nullptr || x->device_index() != device_) {
      return false;
    }
    const auto found = positions_.find(storage_key(*x));
    return found == positions_.end() || (found->second == position && !x->is_view());
  }

 private:
  compat::FlatMap<uint64_t, size_t, std::hash<uint64_t>> positions_;
  int8_t device_ = -1;
};

bool can_record_as_one(c10::ArrayRef<c10::IValue> arguments) {
  WriteTargets written;
  const size_t count = arguments[0].toListRef().size();
  if (is_eager() || !written.add(arguments[0].toListRef())) {
    return false;
  }
  for (const c10::IValue& argument : arguments.slice(1)) {
    if (argument.isTensor() && !written.may_read(argument.toTensor(), count)) {
      return false;
    }
    if (!argument.isTensorList()) {
      continue;
    }
    const auto list = argument.toListRef();
    for (size_t i = 0; i < list.size(); ++i) {
      if (list.size() != count || !written.may_read(list[i].toTensor(), i)) {
        return false;
      }
    }
  }
  return true;
}

bool results_match_targets(const OutputSpec& output_spec, c10::ArrayRef<c10::IValue> targets) {
  for (size_t i = 0; i < targets.size(); ++i) {
    const at::Tensor& target = targets[i].toTensor();
    const Shape& result = output_spec.outs[i];
    if (result.dtype != target.scalar_type() || at::IntArrayRef(result.sizes) != target.sizes()) {
      return false;
    }
  }
  return true;
}

// Returns whether an argument is a CPU tensor with one number per list element, which torch reads on the CPU.
bool is_cpu_number_list(const c10::IValue& argument) {
  return argument.isTensor() && argument.toTensor().is_cpu() && argument.toTensor().dim() > 0;
}

}  // namespace

void record_foreach(const Op& op, torch::jit::Stack* stack) {
  int8_t first = -1;
  for (const c10::IValue& argument : torch::jit::last(*stack, op.kinds.size())) {
    if (C10_UNLIKELY(is_cpu_number_list(argument))) {
      run_loop(op, stack);
      return;
    }
    for (const c10::IValue& element : argument.isTensorList() ? argument.toListRef() : c10::ArrayRef<c10::IValue>()) {
      XlaTensor* x = maybe_xla(element.toTensor());
      if (C10_UNLIKELY(x != nullptr && first >= 0 && x->device_index() != first)) {
        run_loop(op, stack);
        return;
      }
      first = x != nullptr ? x->device_index() : first;
    }
  }
  record(op, stack);
}

void record_foreach_inplace(const Op& op, torch::jit::Stack* stack) {
  flush_if_over_limit();
  const c10::ArrayRef<c10::IValue> arguments = torch::jit::last(*stack, op.kinds.size());
  if (!can_record_as_one(arguments)) {
    run_loop(op, stack);
    return;
  }
  const NodePtr node = record_node(*op.functional, arguments);
  const auto targets = arguments[0].toListRef();
  if (!results_match_targets(*node->output_spec, targets)) {
    op.functional->recorded->add(-1);
    run_loop(op, stack);
    return;
  }
  for (uint32_t i = 0; i < targets.size(); ++i) {
    const at::Tensor& target = targets[i].toTensor();
    target.unsafeGetTensorImpl()->bump_version();  // torch's loop would do it op by op
    require_xla(op, target).write(getitem_node(node, i));
  }
  torch::jit::drop(*stack, op.kinds.size());
  count_pending(node->device, op_count(*op.functional, *node->output_spec));
}

}  // namespace torch_xla
