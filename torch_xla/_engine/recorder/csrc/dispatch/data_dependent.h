// Calls whose results' shapes, or whether they are refused, only values tell. The graph has no values: the CPU answers
// these calls (dispatch/cpu_fallback.h).
#pragma once

#include <ATen/core/ivalue.h>

#include <string>

namespace torch_xla {

// Tells of the arguments of a call whether its values have to be looked at.
using DependsOnValues = bool (*)(c10::ArrayRef<c10::IValue> arguments);

// That of an op, by its name; null for one whose calls are all recorded.
DependsOnValues depends_on_values(const std::string& name);

}  // namespace torch_xla
