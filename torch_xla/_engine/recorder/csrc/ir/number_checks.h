// Checks the numbers that become elements of an op's result: those that torch converts to the dtype of the result.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include "ir/node.h"
#include "ir/op.h"

namespace torch_xla {

// Raises torch's error if a number among the arguments overflows the dtype of its result. Call it if
// op.converts_numbers, after shape inference.
void check_numbers(const Op& op, const Node& node, c10::ArrayRef<c10::IValue> arguments);

}  // namespace torch_xla
