// Registration with torch's dispatcher.
#pragma once

#include <torch/library.h>

#include <string>
#include <unordered_set>

namespace torch_xla {

// Where kernels for xla of the ops of a namespace are registered; lives as long as the process.
torch::Library& implementations(const std::string& ns);

// The same for any key.
torch::Library& library(const std::string& ns, c10::DispatchKey key);

// The views that aten/unboxed_views.cpp registers itself.
bool has_unboxed_view_kernel(const std::string& name);

// Kernels written by hand, and what happens to ops that nobody registered. First.
void register_special_kernels();

// Records calls of that overload from now on. False if this torch has no such overload.
bool register_recorded(const std::string& name, const std::unordered_set<std::string>& baked, bool random);

// Once all recorded ops are known: their in-place and out= forms, found by schema, and torch's default kernels that
// would not work here. Returns (forms registered, ops sent to the CPU).
std::pair<int64_t, int64_t> register_forms();

}  // namespace torch_xla
