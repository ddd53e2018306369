// Registration of the recorder's kernels with torch's dispatcher.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <utility>

namespace torch_xla {

// Returns whether aten/unboxed_views.cpp registers the op.
bool has_unboxed_view_kernel(const std::string& name);

// Registers handwritten kernels and the fallbacks for unregistered ops. Call it first.
void register_special_kernels();

// Records calls of an overload from now on. Returns false if this torch has no such overload.
bool register_recorded(const std::string& name, const std::unordered_set<std::string>& static_args, bool random);

// Registers the in-place and out= variants of all recorded ops, found by schema, and CPU fallbacks for torch's default
// kernels that do not work on xla. Call it once all ops are recorded. Returns (variants registered, ops sent to the
// CPU).
std::pair<int64_t, int64_t> register_variants();

}  // namespace torch_xla
