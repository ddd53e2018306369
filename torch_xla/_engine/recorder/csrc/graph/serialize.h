// A Graph, spelled out for the lowering; asked for where its program is not known, or somebody looks at it.
#pragma once

#include <pybind11/pybind11.h>

#include "graph/graph.h"

namespace torch_xla {

// (op, form, arguments, results, whether these are a list, origin) of each node, operands before users.
pybind11::list serialize(const Graph& graph);
// The value number of each root: leaves come first, then nodes.
pybind11::list root_positions(const Graph& graph);
// (sizes, dtype) of each leaf.
pybind11::list leaf_shapes(const Graph& graph);

}  // namespace torch_xla
