// Recording: a dispatcher call becomes a Node. The hot path: no Python, no GIL, no meta call once a signature is known.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/stack.h>

#include "ir/op.h"
#include "tensor/xla_tensor.h"

namespace torch_xla {

// Pops the op's arguments, pushes its results. Raises, in torch's own words, what the op's meta function raises.
void record(const Op& op, torch::jit::Stack* stack);

// The same without results: the op's Node. A tensor among the arguments may be given by its value.
NodePtr record_node(const Op& op, c10::ArrayRef<c10::IValue> arguments);

inline c10::IValue node_as_ivalue(const NodePtr& value) { return c10::IValue::make_capsule(value); }

[[noreturn]] void raise_not_xla(const Op& op, size_t argument, const at::Tensor& t, int8_t device);

// The tensor of ours that is that argument of a call; raises for any other tensor.
inline XlaTensor& require_xla(const Op& op, const at::Tensor& t, size_t argument = 0) {
  XlaTensor* x = maybe_xla(t);
  if (x == nullptr) {
    raise_not_xla(op, argument, t, -1);
  }
  return *x;
}

// A node that converts `value` to `dtype`; `value` itself where it has that dtype.
NodePtr cast(NodePtr value, at::ScalarType dtype);

}  // namespace torch_xla
