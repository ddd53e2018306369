// Records torch._foreach_* ops as one Node, where torch's composite kernel is a loop of single ops. A number argument
// is one operand of the program, not one per element.
//
//  one Node       tensors of one device; numbers per element in a list or in a tensor of that device; in place: targets
//                 that are not views, occur once, are read or written by no other element of the call, and have the
//                 dtype and shape of their results
//  torch's loop   all other calls
#pragma once

#include <ATen/core/stack.h>

#include "ir/op.h"

namespace torch_xla {

// Like record(), for an op on lists, whose elements may be on several devices.
void record_foreach(const Op& op, torch::jit::Stack* stack);

// Like record_foreach(), in place: writes the results to the tensors of the first list.
void record_foreach_inplace(const Op& op, torch::jit::Stack* stack);

}  // namespace torch_xla
