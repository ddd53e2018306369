// Which form an overload is, and of which recorded op, as its schema tells; and the kernel that records it.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "ir/op.h"

namespace torch_xla {

// What a dispatcher call does: pops the arguments of the op, pushes its results.
using Kernel = void (*)(const Op&, torch::jit::Stack*);

// Whether it returns tensors, and writes to none of its arguments and returns none of them.
bool is_functional(const c10::FunctionSchema& schema);
// Whether what it returns shows memory of its first argument.
bool is_view(const c10::FunctionSchema& schema);

// The kernel of an op that is recorded as it is.
Kernel kernel_of(const Op& op);

// Recorded ops by name, without their overload.
using OpsByName = std::unordered_map<std::string, std::vector<const Op*>>;
OpsByName recorded_ops();

// An overload that writes to its arguments: the recorded op that computes what it writes, and the kernel that calls
// that and writes. Both null: it is no form of a recorded op.
struct MutatingOverload {
  const Op* functional = nullptr;
  Kernel kernel = nullptr;
};
MutatingOverload find_functional(const OpsByName& recorded, const std::string& name, const c10::OperatorHandle& handle);

}  // namespace torch_xla
