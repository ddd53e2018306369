// Shape inference: computes an output spec with torch's meta functions, with the CPU kernel on one element, or with the
// CPU kernel on zeros. Stateless.
#pragma once

#include "inference/output_spec_cache.h"

namespace torch_xla {

// Infers the output spec. Raises the CPU's error for invalid arguments. May run torch's Python code.
OutputSpecPtr infer_uncached(const Op& op, c10::ArrayRef<c10::IValue> arguments);

}  // namespace torch_xla
