// The signature of a call that none is cached of: from torch's meta functions, from the CPU's kernel for one element,
// or from what the CPU computes with zeros. Keeps nothing.
#pragma once

#include "inference/output_spec_cache.h"

namespace torch_xla {

// Raises what the CPU raises for these arguments. May run torch's Python.
SignaturePtr infer_uncached(const Op& op, c10::ArrayRef<c10::IValue> arguments);

}  // namespace torch_xla
