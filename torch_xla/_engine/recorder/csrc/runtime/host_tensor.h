// Memory of the CPU that torch and jax share: tensors over arrays, arrays over tensors.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pybind11/pybind11.h>

namespace torch_xla {

// Of this thread: the kernels of the CPU and what is between them and the caller but autograd. No mode of Python's, no
// transform and no autocast takes part: what is computed was recorded below all of them.
class CpuDispatchScope {
 public:
  CpuDispatchScope()
      : keys_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
              c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView) {}

 private:
  c10::impl::ForceDispatchKeyGuard keys_;
};

// A CPU tensor over the memory of an array that is on the CPU, and has its value; keeps the array.
at::Tensor tensor_from_array(const pybind11::object& array, at::ScalarType dtype, at::IntArrayRef sizes);

// The memory of a dense CPU tensor as jax takes it over (the DLPack protocol). No mode of Python's sees anything of it,
// as one would of the tensor's own __dlpack__.
struct HostTensor {
  at::Tensor tensor;

  pybind11::capsule dlpack() const;
  // Flat, and filled up with zeros to that length.
  HostTensor padded(int64_t length) const;
};

void bind_host_memory(pybind11::module_& m);

}  // namespace torch_xla
