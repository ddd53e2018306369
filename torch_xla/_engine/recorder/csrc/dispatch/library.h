// torch::Library objects that own the registrations of kernels.
#pragma once

#include <torch/library.h>

#include <string>

namespace torch_xla {

// Returns the library for xla kernels of the ops of a namespace. Never destroyed.
torch::Library& implementations(const std::string& ns);

// Returns a new library for any dispatch key. Never destroyed.
torch::Library& library(const std::string& ns, c10::DispatchKey key);

}  // namespace torch_xla
