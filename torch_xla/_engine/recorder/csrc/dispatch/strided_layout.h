// How a view would lie in its memory on a device that has strides. Nothing lies anywhere here; but whether reshape()
// and contiguous() copy, and which elements share a place, is decided by strides, and must be decided as on the CPU.
#pragma once

#include <ATen/core/DimVector.h>

#include "tensor/xla_tensor.h"

namespace torch_xla {

struct Layout {
  at::DimVector strides;
  int64_t offset = 0;  // of the first element
};

// The layout of the view that the steps (at least one) lead to: what torch's own view ops say, asked once per thread
// and chain of views. Calls torch's meta functions; no lock may be held.
Layout layout_of(const ViewChain& steps);

bool is_contiguous_on_cpu(XlaTensor& x);

// Raises torch's error where a view of `x` as elements of `dtype` is refused for its strides or its offset.
void check_view_as(XlaTensor& x, at::ScalarType dtype);

// The tensor that shows `sizes` of the memory of `x`, by the strides and from the offset (none: that of `x`) that torch
// would count in it. Raises torch's error for what lies outside of the memory.
at::Tensor view_of_memory(XlaTensor& x, at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<int64_t> offset);

// Whether `sizes` elements in a row from where `x` begins lie within the memory of `x`, which it shares.
bool base_has_room(XlaTensor& x, at::IntArrayRef sizes);

// The elements of the memory of `x` from where that begins, in a row: what it shows once it is resized. Raises
// NotImplementedError where the memory has elements of another dtype.
at::Tensor flat_base_from(XlaTensor& x);

// Raises torch's error where some places of `written` are places of `read`, and not all, in their order. `copies_lazy`:
// torch's kernel would work on a copy of what is lazily conjugated or negated, which has places of its own.
void check_no_partial_overlap(XlaTensor& written, XlaTensor& read, bool copies_lazy = true);

// The same for each tensor among what a call reads.
void check_no_partial_overlap(XlaTensor& written, c10::ArrayRef<c10::IValue> read);

// Whether the strides put two elements in one place, as far as can be told by looking at one dim at a time.
bool strides_overlap(at::IntArrayRef sizes, at::IntArrayRef strides);

// The write to a view of which some elements share their place, or that was viewed through one such: the elements of
// the memory are written to directly. Refuses what the CPU refuses, in its words; of overlaps other than those of
// expand(), where the CPU's result depends on the order of its loops, it allows what leaves no choice. `uniform`: all
// elements of `value` are equal.
void write_strided(XlaTensor& x, NodePtr value, bool uniform);

}  // namespace torch_xla
