// Serializes a Graph for lowering: requested if its program is not cached, or for inspection.
#pragma once

#include <pybind11/pybind11.h>

#include "graph/graph.h"

namespace torch_xla {

// Returns (op, schema_kind, arguments, results, whether these are a list, origin, default dtype) of each node, operands
// before users.
pybind11::list serialize(const Graph& graph);
// Returns the value number of each root: leaves come first, then nodes.
pybind11::list root_positions(const Graph& graph);
// Returns (sizes, dtype) of each leaf.
pybind11::list leaf_shapes(const Graph& graph);

}  // namespace torch_xla
