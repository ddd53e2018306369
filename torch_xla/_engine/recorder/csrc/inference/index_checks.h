// What torch's kernels for the CPU refuse of indices, and masks among them.
#pragma once

#include <ATen/core/ivalue.h>

#include <string>

namespace torch_xla {

// Whether an index chooses elements by their truth: how many it chooses is not known when it is recorded.
bool is_mask(const c10::IValue& index);

// Whether values of another dtype, in another number, or of none of the places that there are, are put or looked up:
// the CPU refuses some. How many places a mask has is not known. Raises torch's error for indices that fit no tensor of
// the first argument's sizes.
bool is_invalid_index_write(const std::string& name, c10::ArrayRef<c10::IValue> arguments);

}  // namespace torch_xla
