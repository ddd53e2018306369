// Calls torch's CPU kernel of one node: arguments from the values of its operands, results that match its output spec.
// Stateless; the caller owns the values.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>

#include "ir/node.h"

namespace torch_xla {

using Values = c10::SmallVector<at::Tensor, 1>;
using ValueOf = c10::function_ref<const at::Tensor&(const Node&)>;

// Returns argument `i` for the kernel of `op`: the node's op, or its functional variant.
c10::IValue kernel_argument(const Node& node, const Op& op, size_t i, ValueOf value);

// Returns the arguments for the kernel of `op`: the node's op, or its functional variant.
torch::jit::Stack kernel_arguments(const Node& node, const Op& op, ValueOf value);

// Returns the tensors that a kernel left on the stack, lists flattened; undefined tensors for None.
Values kernel_results(const torch::jit::Stack& stack);

// Converts the results of an in-place op to the dtype of its target. Drops results that do not match `outs`, their
// shapes: mostly unused ones, such as the statistics of a normalization in inference. Raises if the only result does not
// match.
Values conform_results(const Node& node, c10::ArrayRef<Shape> outs, Values found);

}  // namespace torch_xla
