// The order in which the interpreter computes a graph's nodes, and the operands that each needs.
//
//  element of a foreach node    at its first use: the temporary values of an optimizer step exist for one parameter at a
//                               time
//  foreach node                 not computed as a whole
//  any other node               in the recorded order
#pragma once

#include <c10/util/FunctionRef.h>

#include <vector>

#include "graph/graph.h"

namespace torch_xla {

// Returns whether a node is one result of a foreach node, which is computed apart from the others.
bool is_element(const Node& node);

// Calls `visit` with each operand of a node that is computed.
void visit_operands(const Node& node, c10::function_ref<void(const NodePtr&)> visit);

// Returns the nodes to compute, each once.
std::vector<const Node*> evaluation_order(const Graph& graph);

}  // namespace torch_xla
