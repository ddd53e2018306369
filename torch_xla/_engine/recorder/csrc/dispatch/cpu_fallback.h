// Ops that torch runs on the CPU, with values downloaded and results uploaded; each call is counted.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "ir/op.h"

namespace torch_xla {

// Whether this call has to be answered by the CPU: a generator of the user's, or a result of unknown shape.
bool needs_cpu_fallback(const Op& op, c10::ArrayRef<c10::IValue> arguments);

// Runs the op on the CPU, counted as aten::<op>.
void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace torch_xla
