// Schema kinds: from its schema, decides which recorded op an overload is a variant of, and which kernel records it.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "ir/op.h"

namespace torch_xla {

// A recording function: pops the op's arguments, pushes its results.
using Kernel = void (*)(const Op&, torch::jit::Stack*);

// Returns whether it returns tensors, and neither writes to nor returns any of its arguments.
bool is_functional(const c10::FunctionSchema& schema);
// Returns whether its result is a view of its first argument.
bool is_view(const c10::FunctionSchema& schema);

// Returns the kernel of an op that is recorded unchanged.
Kernel select_kernel(const Op& op);

// Recorded ops by name without overload.
using OpsByName = std::unordered_map<std::string, std::vector<const Op*>>;
OpsByName recorded_ops();

// An overload that writes to its arguments: the recorded op that computes the written values, and the kernel that
// records that op and writes. Both null if it is not a variant of a recorded op.
struct MutatingOverload {
  const Op* functional = nullptr;
  Kernel kernel = nullptr;
};
MutatingOverload find_functional(const OpsByName& recorded, const std::string& name, const c10::OperatorHandle& handle);

}  // namespace torch_xla
