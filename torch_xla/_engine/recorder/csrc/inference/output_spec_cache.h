// Output spec cache: calls shape inference once per (op, attributes, input shapes).
#pragma once

#include <ATen/core/stack.h>

#include "ir/node.h"
#include "ir/op.h"

namespace torch_xla {

// Returns the cached output spec for `key`, or infers and caches it. Thread-safe. Raises what inference raises, and
// then caches nothing.
OutputSpecPtr infer_output_spec(const Op& op, const Key& key, c10::ArrayRef<c10::IValue> arguments);

// Raises the CPU's error if an `out` has a dtype that the op does not convert to. `arguments` are those of the out=
// variant, the outs last; `results` are the values to be written to them.
void check_out_dtypes(const Op& op, c10::ArrayRef<c10::IValue> arguments, c10::ArrayRef<c10::IValue> results);

// For tests: if `on`, each output spec that this thread finds in the cache is inferred again, and a difference raises:
// something that determines the output spec is missing from the key.
void verify_cache(bool on);

}  // namespace torch_xla
