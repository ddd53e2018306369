// What a dispatcher call of an op on lists does (torch._foreach_*): one Node for all of them, where torch's kernel for
// all devices is a loop of ops that are not foreach. Its number is one operand of the program, and not one per element.
//
//   one Node       lists of tensors of one device, numbers for each element in a list or a tensor of that device;
//                  in place: tensors that are no views, each once, which no other element of the call reads or writes,
//                  and that get results of their own dtype and shape
//   torch's loop   all else
#pragma once

#include <ATen/core/stack.h>

#include "ir/op.h"

namespace torch_xla {

// As record(), for an op on lists, whose elements may be on several devices.
void record_foreach(const Op& op, torch::jit::Stack* stack);

// The same, in place: the tensors of the first list get the values.
void record_foreach_inplace(const Op& op, torch::jit::Stack* stack);

}  // namespace torch_xla
