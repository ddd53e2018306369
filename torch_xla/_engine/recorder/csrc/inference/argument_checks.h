// What torch's CPU kernels refuse and its meta functions let pass. It would fail when the graph is compiled, at another
// line than the user's.
#pragma once

#include <ATen/core/ivalue.h>

#include "ir/op.h"

namespace torch_xla {

// Raises what the CPU raises for these arguments, for all reasons that shapes, dtypes and numbers tell; `results` are
// those of the meta function.
void check_accepted_by_cpu(const Op& op, c10::ArrayRef<c10::IValue> arguments, c10::ArrayRef<c10::IValue> results);

}  // namespace torch_xla
