// The range of a dimension that a slice, a select or a write to one covers.
#pragma once

#include <ATen/core/ivalue.h>

#include <optional>

#include "ir/node.h"
#include "ir/op.h"

namespace torch_xla {

// The range [begin, end) of a dimension of this size.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size = 0;

  bool can_move() const { return begin < end && end - begin < size; }
};

// Wraps a position that may count from the end.
inline int64_t from_start(int64_t position, int64_t size) { return position < 0 ? position + size : position; }

// Returns the range that a slicing op, called with these arguments (or a Node's attributes), reads or writes along its
// dimension. `sizes` are those of the tensor with the full dimension. Returns nullopt for a call that torch rejects.
std::optional<Range> range_of(const Op& op, c10::ArrayRef<c10::IValue> arguments, at::IntArrayRef sizes);

// Marks a Node's slice as movable: mixes in its length in place of its start and end.
void mix_movable_range(Node& node, const Range& range);

}  // namespace torch_xla
