// What a dispatcher call of an op does that writes to tensors beside what it computes: out=, statistics and counters
// that change on the side, steps of fused optimizers. Each is the functional op, recorded, and its results written to
// the targets. The targets are the caller's.
#pragma once

#include <ATen/core/stack.h>

#include "ir/op.h"

namespace torch_xla {

// A target of another shape than the result is resized first, unless the call reads it.
void record_out(const Op& op, torch::jit::Stack* stack);
// An op that writes to some arguments beside what it returns: `op.functional` returns their new values after the rest.
void record_extra_mutations(const Op& op, torch::jit::Stack* stack);
// A step of a fused optimizer: `op.functional` returns the new values of the lists that the op writes to, one after the
// other. Lists over several devices go to the CPU.
void record_fused(const Op& op, torch::jit::Stack* stack);

}  // namespace torch_xla
