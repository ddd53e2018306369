// Ops that go element by element, asked of the CPU with one element in place of each operand's: what dtypes and numbers
// decide there is decided alike for all sizes. torch's meta functions say otherwise now and then.
#pragma once

#include <ATen/core/DimVector.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <vector>

#include "ir/op.h"

namespace torch_xla {

// The dtype of the one result that the CPU gives; none where it has more, or no kernel for a dtype that XLA has.
// Raises what the CPU raises for operands of these dtypes, and for these numbers.
std::optional<at::ScalarType> cpu_result_dtype(const Op& op, c10::ArrayRef<c10::IValue> arguments);

// The first list of tensors; none where there is none.
c10::ArrayRef<c10::IValue> first_list(c10::ArrayRef<c10::IValue> arguments);

// The dtypes of the one list that an op on lists (torch._foreach_*) gives on the CPU, each element of the shape that
// those of its place have; none where these have several, or the op reduces them. Raises as above.
std::optional<std::vector<at::ScalarType>> cpu_result_dtypes_of_lists(const Op& op,
                                                                      c10::ArrayRef<c10::IValue> arguments);

// The shape of the result. Raises what the CPU raises where the operands' do not go together.
at::DimVector broadcast_shape(c10::ArrayRef<c10::IValue> arguments);

// Raises what the CPU raises where an op in place would give more elements than it can write to. torch's meta functions
// resize what they write to.
void check_broadcasts_to_self(c10::ArrayRef<c10::IValue> arguments);

void check_same_sizes(at::IntArrayRef self, at::IntArrayRef result);

// Whether an error says only that torch has no kernel for a dtype that XLA has: floats, and unsigned numbers that torch
// can do little with but keep. Nobody has bits of floats, or their divisors.
bool is_missing_kernel(const Op& op, const c10::Error& error);

}  // namespace torch_xla
