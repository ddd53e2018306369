// Data-dependent calls: values determine the shapes of their results, or whether torch rejects them. A graph has no
// values, so the CPU runs these calls (dispatch/cpu_fallback.h).
#pragma once

#include <ATen/core/ivalue.h>

#include <string>

namespace torch_xla {

// Returns whether a call with these arguments is data-dependent.
using DependsOnValues = bool (*)(c10::ArrayRef<c10::IValue> arguments);

// Returns the predicate of an op, by its name; null if all its calls can be recorded.
DependsOnValues depends_on_values(const std::string& name);

}  // namespace torch_xla
