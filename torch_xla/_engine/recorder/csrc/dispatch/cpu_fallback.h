// CPU fallback: runs ops on the CPU, with downloaded inputs and uploaded results; counts each call.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "ir/op.h"

namespace torch_xla {

// Returns whether the CPU must run this call: it has a CPU generator, or a result of unknown shape.
bool needs_cpu_fallback(const Op& op, c10::ArrayRef<c10::IValue> arguments);

// Runs the op on the CPU, and counts it as aten::<op>.
void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace torch_xla
