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

// The number of the memory that it shares with others; of a tensor that shares none, its address, which is no such
// number.
uint64_t memory_of(XlaTensor& x) {
  const uint64_t shared = x.memory_id();
  return shared != 0 ? shared : reinterpret_cast<uint64_t>(&x);
}

// The memories that a call writes to, each with its place in the list.
class Written {
 public:
  // False where the loop is not one operation.
  bool add(c10::ArrayRef<c10::IValue> targets) {
    places_.reserve(2 * targets.size());
    for (size_t i = 0; i < targets.size(); ++i) {
      XlaTensor* x = maybe_xla(targets[i].toTensor());
      if (x == nullptr || x->is_view() || (i > 0 && x->device_index() != device_)) {
        return false;
      }
      device_ = x->device_index();
      if (!places_.emplace(memory_of(*x), i).second) {
        return false;
      }
    }
    return !targets.empty();
  }

  // Whether what the element at that place reads of this tensor is what was there before the call.
  bool may_read(const at::Tensor& t, size_t place) const {
    XlaTensor* x = maybe_xla(t);
    if (x == nullptr || x->device_index() != device_) {
      return false;
    }
    const auto found = places_.find(memory_of(*x));
    return found == places_.end() || (found->second == place && !x->is_view());
  }

 private:
  compat::FlatMap<uint64_t, size_t, std::hash<uint64_t>> places_;
  int8_t device_ = -1;
};

bool is_one_operation(c10::ArrayRef<c10::IValue> arguments) {
  Written written;
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

bool gives_what_is_written(const OutputSpec& signature, c10::ArrayRef<c10::IValue> targets) {
  for (size_t i = 0; i < targets.size(); ++i) {
    const at::Tensor& target = targets[i].toTensor();
    const Shape& result = signature.outs[i];
    if (result.dtype != target.scalar_type() || at::IntArrayRef(result.sizes) != target.sizes()) {
      return false;
    }
  }
  return true;
}

// One number for each element of the lists, where torch reads it: on the CPU.
bool holds_numbers(const c10::IValue& argument) {
  return argument.isTensor() && argument.toTensor().is_cpu() && argument.toTensor().dim() > 0;
}

}  // namespace

void record_foreach(const Op& op, torch::jit::Stack* stack) {
  int8_t first = -1;
  for (const c10::IValue& argument : torch::jit::last(*stack, op.kinds.size())) {
    if (C10_UNLIKELY(holds_numbers(argument))) {
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
  if (!is_one_operation(arguments)) {
    run_loop(op, stack);
    return;
  }
  const NodePtr node = record_node(*op.functional, arguments);
  const auto targets = arguments[0].toListRef();
  if (!gives_what_is_written(*node->signature, targets)) {
    op.functional->recorded->add(-1);
    run_loop(op, stack);
    return;
  }
  for (uint32_t i = 0; i < targets.size(); ++i) {
    const at::Tensor& target = targets[i].toTensor();
    target.unsafeGetTensorImpl()->bump_version();  // else done by the ops of the loop
    require_xla(op, target).write(getitem_node(node, i));
  }
  torch::jit::drop(*stack, op.kinds.size());
  count_pending(node->device, op_count(*node));
}

}  // namespace torch_xla
