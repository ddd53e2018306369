// Where the parts start that ops read or write along a dimension: slices, rows, and writes to them.
//
// A start is in the key of a graph, and a constant of its program, until a graph comes that differs in nothing but
// starts: those that differ are operands from then on, and whatever has the same size is one program.
//
//   graph                        key of the graph, start by start
//   the first of its kind        each by its value
//   as before                    each by its value
//   another start in one place   an operand there, for good; elsewhere by value
//
// The key of a Node has the size of its part alone. What cannot start elsewhere (all of a dimension, nothing of it) has
// no start.
#pragma once

#include <ATen/core/ivalue.h>

#include <optional>

#include "graph/graph.h"
#include "ir/op.h"

namespace torch_xla {

// Places [begin, end) of a dimension that has `size`.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size = 0;

  bool can_move() const { return begin < end && end - begin < size; }
};

// A position that may count from the end.
inline int64_t from_start(int64_t position, int64_t size) { return position < 0 ? position + size : position; }

// What a call of an op that has a part reads or writes, or a Node with these attributes, along its dimension. `sizes`:
// of what has all of the dimension. Nothing for a call that torch refuses.
std::optional<Range> range_of(const Op& op, c10::ArrayRef<c10::IValue> arguments, at::IntArrayRef sizes);

// Notes in a Node, in place of its arguments for start and end, that its part may start elsewhere.
void mix_part(Node& node, const Range& range);

// Finishes the key of a graph: decides which starts are operands, and appends these to its ints. Remembers the starts
// of each kind of graph, per device. Thread-safe.
void settle_starts(Graph& graph);

}  // namespace torch_xla
