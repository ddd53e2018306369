// Slice starts: where slices, selects and writes to them start along a dimension.
//
// A start is in the key of a graph, and a constant of its program, until a graph is collected that differs only in
// starts. From then on the differing starts are operands, so all slices of the same size share one program.
//
//  graph                                key of the graph, for each start
//  the first of its kind                by value
//  with the same starts                 by value
//  with another start in one position   an operand there, permanently; by value elsewhere
//
// The key of a Node contains the size of its slice only. A slice that cannot start elsewhere (all of a dimension, or
// empty) has no start.
#pragma once

#include "graph/graph.h"

namespace torch_xla {

// Completes the key of a graph: decides which starts are operands, and appends these to its ints. Stores the starts of
// each graph kind, per device. Thread-safe.
void finalize_starts(Graph& graph);

}  // namespace torch_xla
