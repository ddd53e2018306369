// Output specs of elementwise ops: runs the CPU kernel on one element per operand. Dtypes and numbers determine the
// result dtype and errors independently of sizes. torch's meta functions differ from the kernels in some cases.
#pragma once

#include <ATen/core/DimVector.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <vector>

#include "ir/op.h"

namespace torch_xla {

// Returns the dtype of the single result on the CPU; nullopt for several results, or if the CPU lacks a kernel for a
// dtype that XLA supports. Raises the CPU's error for operands of these dtypes, and for these numbers.
std::optional<at::ScalarType> cpu_result_dtype(const Op& op, c10::ArrayRef<c10::IValue> arguments);

// Returns the first list of tensors; an empty one if there is none.
c10::ArrayRef<c10::IValue> first_list(c10::ArrayRef<c10::IValue> arguments);

// Returns the dtypes of the list that a torch._foreach_* op returns on the CPU, each element of which has the shape of
// its operands; nullopt if their shapes differ, or if the op reduces them. Raises as above.
std::optional<std::vector<at::ScalarType>> cpu_result_dtypes_of_lists(const Op& op,
                                                                      c10::ArrayRef<c10::IValue> arguments);

// Returns the broadcast shape of all operands. Raises the CPU's error if they do not broadcast.
at::DimVector broadcast_shape(c10::ArrayRef<c10::IValue> arguments);

// Raises the CPU's error if the result of an in-place op has more elements than its target. torch's meta functions
// resize the target instead.
void check_broadcasts_to_self(c10::ArrayRef<c10::IValue> arguments);

void check_same_sizes(at::IntArrayRef self, at::IntArrayRef result);

// Returns whether an error only says that torch lacks a kernel for a dtype that XLA supports: floats, and unsigned
// integers, which torch mainly stores. Bitwise ops and gcd do not exist for floats on any device.
bool is_missing_kernel(const Op& op, const c10::Error& error);

}  // namespace torch_xla
