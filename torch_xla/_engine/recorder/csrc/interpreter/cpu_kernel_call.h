// A node's op, called as torch's kernel for the CPU: the arguments from the values of its operands, and results that
// are what the recorder promised. Owns nothing; the values are the caller's.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>

#include "ir/node.h"

namespace torch_xla {

using Values = c10::SmallVector<at::Tensor, 1>;
using ValueOf = c10::function_ref<const at::Tensor&(const Node&)>;

// What the kernel of `op` takes: the node's own, or the functional form of it.
torch::jit::Stack kernel_arguments(const Node& node, const Op& op, ValueOf value);

// The tensors that a kernel has left, those of lists one by one; undefined ones for None.
Values kernel_results(const torch::jit::Stack& stack);

// What an op in place computes takes the dtype of what it writes to. A result that is not what was promised is left
// out: most often nobody wants it (the statistics of a normalization that is not training). Raises where it is the only
// one.
Values conform_results(const Node& node, Values found);

}  // namespace torch_xla
