// The elements of a torch._foreach_* node, one by one. torch's kernel of such a node computes all its results together:
// an optimizer that works on lists would hold several temporary copies of all its parameters.
#pragma once

#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>

#include "interpreter/cpu_kernel_call.h"
#include "ir/node.h"

namespace torch_xla {

// Returns whether a node is a foreach op with one list element, and one number of each list of numbers, per result.
bool has_elements(const Node& node);

// Calls `visit` with each operand of element `i`.
void visit_element_operands(const Node& node, size_t i, c10::function_ref<void(const NodePtr&)> visit);

// Returns the arguments for a call of the node's kernel with lists that contain only element `i`.
torch::jit::Stack element_arguments(const Node& node, size_t i, ValueOf value);

}  // namespace torch_xla
