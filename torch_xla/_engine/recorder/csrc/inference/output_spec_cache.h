// Shape inference: what an op returns, asked of torch's meta functions once per (op, attributes, input signatures).
#pragma once

#include <ATen/core/stack.h>

#include "ir/node.h"
#include "ir/op.h"

namespace torch_xla {

// The cached signature under `key`, or the one that calling `op` on meta tensors in place of `arguments` gives.
// Thread-safe. Raises what the meta function raises, and then caches nothing.
SignaturePtr infer_output_spec(const Op& op, const Key& key, c10::ArrayRef<c10::IValue> arguments);

// Raises what the CPU raises for outs of dtypes that it does not convert to. `arguments` are those of an out= form, the
// outs last; `results` are what is to be written to them.
void check_out_dtypes(const Op& op, c10::ArrayRef<c10::IValue> arguments, c10::ArrayRef<c10::IValue> results);

// For tests: with `on`, each signature that this thread finds in the cache is inferred again, and one that differs
// raises: something decides what an op returns that is not in its key.
void verify_cache(bool on);

}  // namespace torch_xla
