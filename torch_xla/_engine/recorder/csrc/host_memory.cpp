#include "host_memory.h"

#include <ATen/DLConvertor.h>

#include "node.h"

namespace py = pybind11;
namespace torch_xla {

at::Tensor tensor_over(const py::object& array, at::ScalarType dtype, at::IntArrayRef sizes) {
  const auto options = at::TensorOptions().dtype(dtype).device(at::kCPU);
  if (c10::multiply_integers(sizes) == 0) {
    return at::empty(sizes, options);
  }
  auto* memory = reinterpret_cast<void*>(array.attr("unsafe_buffer_pointer")().cast<uintptr_t>());
  PyObject* held = array.inc_ref().ptr();
  return at::from_blob(memory, sizes, [held](void*) { release_reference(held); }, options);
}

py::capsule HostMemory::dlpack() const {
  const PlainKernels kernels;
  return py::capsule(at::toDLPack(tensor), "dltensor", [](PyObject* capsule) {
    if (PyCapsule_IsValid(capsule, "dltensor") != 0) {  // nobody has taken it
      auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
      managed->deleter(managed);
    }
  });
}

HostMemory HostMemory::padded(int64_t length) const {
  const PlainKernels kernels;
  return {at::constant_pad_nd(tensor.reshape({-1}), {0, length - tensor.numel()}, 0)};
}

void bind_host_memory(py::module_& m) {
  py::class_<HostMemory>(m, "HostMemory")
      .def("__dlpack__", [](const HostMemory& memory, const py::kwargs&) { return memory.dlpack(); })
      .def("__dlpack_device__", [](const HostMemory&) { return py::make_tuple(static_cast<int>(kDLCPU), 0); })
      .def("padded", &HostMemory::padded)
      .def_property_readonly("dtype",
                             [](const HostMemory& memory) { return static_cast<int>(memory.tensor.scalar_type()); })
      .def_property_readonly("shape",
                             [](const HostMemory& memory) { return py::tuple(py::cast(memory.tensor.sizes().vec())); });
}

}  // namespace torch_xla
