// Recording: turns a dispatcher call into a Node. The hot path: no Python, no GIL, and no meta function once the output
// spec is cached.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/stack.h>

#include "ir/op.h"
#include "tensor/xla_tensor.h"

namespace torch_xla {

// Pops the op's arguments, pushes its results. Raises torch's error if the op's arguments are invalid.
void record(const Op& op, torch::jit::Stack* stack);

// Like record(), but returns the op's Node. A tensor argument may be passed as a Node (node_as_ivalue).
NodePtr record_node(const Op& op, c10::ArrayRef<c10::IValue> arguments);

inline c10::IValue node_as_ivalue(const NodePtr& value) { return c10::IValue::make_capsule(value); }

[[noreturn]] void raise_not_xla(const Op& op, size_t argument, const at::Tensor& t, int8_t device);

// Returns the XlaTensor that is argument `argument` of a call; raises for any other tensor.
inline XlaTensor& require_xla(const Op& op, const at::Tensor& t, size_t argument = 0) {
  XlaTensor* x = maybe_xla(t);
  if (x == nullptr) {
    raise_not_xla(op, argument, t, -1);
  }
  return *x;
}

// Returns a node that converts `value` to `dtype`; `value` itself if it has that dtype.
NodePtr cast(NodePtr value, at::ScalarType dtype);

}  // namespace torch_xla
