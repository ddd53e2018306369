// Operators on strided memory: as_strided, dtype views, resizes, and overlap checks, as the CPU performs them.
#pragma once

#include "tensor/view_layout.h"
#include "tensor/xla_tensor.h"

namespace torch_xla {

// Raises torch's error if a view of `x` with elements of `dtype` is invalid for its strides or offset.
void check_view_as(XlaTensor& x, at::ScalarType dtype);

// Returns the view of the memory of `x` with these sizes, strides and offset (default: that of `x`), as torch counts
// them. Raises torch's error for a range outside of the memory.
at::Tensor view_as_strided(XlaTensor& x, at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<int64_t> offset);

// Returns whether `sizes` contiguous elements from the start of `x` fit into the memory that `x` shares.
bool base_has_room(XlaTensor& x, at::IntArrayRef sizes);

// Returns the elements of the memory of `x` from its offset, flat: its content after a resize. Raises
// NotImplementedError if the memory has another dtype.
at::Tensor flat_base_from(XlaTensor& x);

// Raises torch's error if the memory of `written` and `read` overlaps partially or in another order. `copies_lazy`:
// torch's kernel first copies lazily conjugated or negated operands, which then do not overlap.
void check_no_partial_overlap(XlaTensor& written, XlaTensor& read, bool copies_lazy = true);

// Checks each tensor argument of a call.
void check_no_partial_overlap(XlaTensor& written, c10::ArrayRef<c10::IValue> read);

}  // namespace torch_xla
