// What torch's CPU kernels refuse and its meta functions let pass. It would fail when the graph is compiled, at another
// line than the user's.
#pragma once

#include <ATen/core/ivalue.h>

#include "op.h"

namespace torch_xla {

// Raises what the CPU raises for these arguments, for all reasons that shapes, dtypes and numbers tell; `results` are
// those of the meta function.
void check_as_cpu_does(const Op& op, c10::ArrayRef<c10::IValue> arguments, c10::ArrayRef<c10::IValue> results);

// Raises what the CPU raises for draws that are written to a tensor of this dtype. Draws that the CPU converts pass.
void check_random_out(const Op& functional, at::ScalarType out);

// Whether an index chooses elements by their truth: how many it chooses is not known when it is recorded.
bool is_mask(const c10::IValue& index);

}  // namespace torch_xla
