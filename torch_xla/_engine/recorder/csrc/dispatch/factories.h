// What a dispatcher call of an op does that says on which device its result is made.
// The result is of the device that is asked for; where that is not the tensors' own, torch's kernels for all devices
// make it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <optional>

#include "ir/op.h"

namespace torch_xla {

// As record(), for an op one of whose arguments says where the result is made, which may be elsewhere than its tensors.
void record_factory(const Op& op, torch::jit::Stack* stack);

// A truth value of the program (whether a loop is at its end) is an operand: it would be a constant of the graph else.
at::Tensor full(c10::SymIntArrayRef size, const c10::Scalar& value, std::optional<at::ScalarType> dtype,
                std::optional<at::Layout> layout, std::optional<at::Device> device, std::optional<bool> pin_memory);

}  // namespace torch_xla
