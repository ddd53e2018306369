// What torch's random kernels for the CPU refuse: dtypes and ranges. Never asked of a kernel that draws from torch's
// own generator, which must not move on.
#pragma once

#include <ATen/core/ivalue.h>

#include "ir/op.h"

namespace torch_xla {

// Raises what the CPU raises for a call of a random op.
void check_random(const Op& op, c10::ArrayRef<c10::IValue> arguments);

// Raises what the CPU raises for draws that are written to a tensor of this dtype. Draws that the CPU converts pass.
void check_random_out(const Op& functional, at::ScalarType out);

}  // namespace torch_xla
