// Records ops that write to tensors besides their functional result: out= variants, statistics and counters updated as
// a side effect, fused optimizer steps. Each records the functional op, and writes its results to the targets, which
// the caller owns.
#pragma once

#include <ATen/core/stack.h>

#include "ir/op.h"

namespace torch_xla {

// Records an out= variant. A target of another shape than the result is resized, unless the call reads it.
void record_out(const Op& op, torch::jit::Stack* stack);
// Records an op that writes to further arguments: `op.functional` returns their new values after the results.
void record_extra_mutations(const Op& op, torch::jit::Stack* stack);
// Records a fused optimizer step: `op.functional` returns the new values of all written lists, concatenated. Lists on
// several devices fall back to the CPU.
void record_fused(const Op& op, torch::jit::Stack* stack);

}  // namespace torch_xla
