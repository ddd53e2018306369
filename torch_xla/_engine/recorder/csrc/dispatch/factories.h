// Records factory ops, whose device argument selects the device of the result. If it differs from the device of the
// tensor arguments, torch's composite kernels make the result.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <optional>

#include "ir/op.h"

namespace torch_xla {

// Like record(), for an op with a device argument, which may differ from the device of its tensors.
void record_factory(const Op& op, torch::jit::Stack* stack);

// Makes a bool fill value (for example, whether a loop ends) an operand instead of a constant of the graph.
at::Tensor full(c10::SymIntArrayRef size, const c10::Scalar& value, std::optional<at::ScalarType> dtype,
                std::optional<at::Layout> layout, std::optional<at::Device> device, std::optional<bool> pin_memory);

}  // namespace torch_xla
