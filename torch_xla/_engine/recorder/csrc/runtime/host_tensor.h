// Host memory shared by torch and jax: tensors over arrays, arrays over tensors.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pybind11/pybind11.h>

namespace torch_xla {

// Dispatches to CPU kernels on this thread, below autograd. Excludes Python modes, functorch transforms and autocast:
// they were applied before the operation was recorded.
class CpuDispatchScope {
 public:
  CpuDispatchScope()
      : keys_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
              c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView) {}

 private:
  c10::impl::ForceDispatchKeyGuard keys_;
};

// Returns a CPU tensor that shares the memory of a ready CPU array, and retains the array.
at::Tensor tensor_from_array(const pybind11::object& array, at::ScalarType dtype, at::IntArrayRef sizes);

// A dense CPU tensor as jax imports it (DLPack protocol). Python modes do not see the export, as they would with the
// tensor's own __dlpack__.
struct HostTensor {
  at::Tensor tensor;

  pybind11::capsule dlpack() const;
  // Returns a flat copy, padded with zeros to that length.
  HostTensor padded(int64_t length) const;
};

void bind_host_tensor(pybind11::module_& m);

}  // namespace torch_xla
