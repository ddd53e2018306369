#include "dispatch/library.h"

#include <memory>
#include <unordered_map>
#include <vector>

namespace torch_xla {

// Libraries own the registrations; never destroyed.
torch::Library& library(const std::string& ns, c10::DispatchKey key) {
  static auto* libraries = new std::vector<std::unique_ptr<torch::Library>>;
  libraries->push_back(std::make_unique<torch::Library>(torch::Library::IMPL, ns, key, __FILE__, __LINE__));
  return *libraries->back();
}

torch::Library& implementations(const std::string& ns) {
  static auto* by_namespace = new std::unordered_map<std::string, torch::Library*>;
  auto& lib = (*by_namespace)[ns];
  if (lib == nullptr) {
    lib = &library(ns, c10::DispatchKey::XLA);
  }
  return *lib;
}

}  // namespace torch_xla
