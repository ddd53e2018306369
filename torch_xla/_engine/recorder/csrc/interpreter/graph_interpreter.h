// Graph interpreter: computes a graph node by node with torch's CPU kernels, on the memory of the device's buffers,
// without compiling a program. Only for CPU devices; execution/cpu_interpreter.py decides when.
//
//  leaves    tensors over the buffers' memory, never written to
//  values    of a node, from its computation until its last use
//  results   tensors with separate memory, which a later program may take over
//
// Nodes that torch has no CPU kernel for, or whose random numbers jax defines, are computed by a Python fallback. It
// takes the node's index and the operands' memory by value number (as in graph/serialize.h), and returns an array for
// each result, None for an absent one; an array may be padded.
#pragma once

#include <pybind11/pybind11.h>

#include "graph/graph.h"

namespace torch_xla {

// Returns the roots of a graph, in order, as host memory that jax imports (HostTensor), in storage dtypes. `arrays`:
// the ready arrays of the leaves. `storage_dtypes`: pairs (dtype, storage dtype), of those that differ.
//
// Raises what a kernel or a signal handler raises; the graph is then unchanged.
pybind11::list interpret(const Graph& graph, const pybind11::list& arrays, const pybind11::list& storage_dtypes,
                         const pybind11::function& call_python_fallback);

void bind_graph_interpreter(pybind11::module_& m);

}  // namespace torch_xla
