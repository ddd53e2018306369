// A graph computed node by node with torch's kernels for the CPU, on the memory of the device's buffers, where the
// device is this machine's CPU: no program is compiled. execution/cpu_interpreter.py says when.
//
//   leaves    tensors over the buffers' memory, which nothing writes to
//   values    of a node, from when it is computed until the last one that needs it is
//   results   tensors, each with memory of its own, which a later program may take over
//
// Nodes that torch has no kernel for on the CPU, or whose random numbers are defined by jax, are computed apart: by a
// function of Python's, which gets the node's number and its operands' memory by their numbers (as graph/serialize.h numbers
// them), and gives an array for each result, None for one that does not exist; an array may be longer than that.
#pragma once

#include <pybind11/pybind11.h>

#include "graph/graph.h"

namespace torch_xla {

// The roots of a graph, in order, as memory that jax takes (HostMemory), in the dtypes that the device stores.
// `arrays`: the leaves', whose values are there. `stored`: pairs of codes (dtype, what the device stores it as), of
// those that differ.
//
// Raises what a kernel raises, and what signal handlers do; nothing has changed then.
pybind11::list interpret(const Graph& graph, const pybind11::list& arrays, const pybind11::list& stored,
                         const pybind11::function& call_python_fallback);

void bind_interpretation(pybind11::module_& m);

}  // namespace torch_xla
