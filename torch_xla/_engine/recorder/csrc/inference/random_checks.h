// Argument checks for random ops: dtypes and ranges that torch's CPU kernels reject. Never runs a kernel with torch's
// default generator, which must not advance.
#pragma once

#include <ATen/core/ivalue.h>

#include "ir/op.h"

namespace torch_xla {

// Raises the CPU's error for a call of a random op.
void check_random(const Op& op, c10::ArrayRef<c10::IValue> arguments);

// Raises the CPU's error if random values cannot be written to a tensor of this dtype. Conversions that the CPU does
// pass.
void check_random_out(const Op& functional, at::ScalarType out);

}  // namespace torch_xla
