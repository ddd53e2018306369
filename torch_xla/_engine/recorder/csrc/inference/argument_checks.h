// Argument checks: rejects what torch's CPU kernels reject and its meta functions accept. Such a call would otherwise
// fail at compile time, far from the user's line.
#pragma once

#include <ATen/core/ivalue.h>

#include "ir/op.h"

namespace torch_xla {

// Raises the CPU's error for these arguments, if shapes, dtypes and numbers determine it. `results` are the meta
// function's.
void check_accepted_by_cpu(const Op& op, c10::ArrayRef<c10::IValue> arguments, c10::ArrayRef<c10::IValue> results);

}  // namespace torch_xla
