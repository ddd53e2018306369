#include "runtime/host_tensor.h"

#include <ATen/DLConvertor.h>

#include "runtime/buffer.h"

namespace py = pybind11;
namespace torch_xla {

at::Tensor tensor_from_array(const py::object& array, at::ScalarType dtype, at::IntArrayRef sizes) {
  const auto options = at::TensorOptions().dtype(dtype).device(at::kCPU);
  if (c10::multiply_integers(sizes) == 0) {
    return at::empty(sizes, options);
  }
  auto* memory = reinterpret_cast<void*>(array.attr("unsafe_buffer_pointer")().cast<uintptr_t>());
  PyObject* retained = array.inc_ref().ptr();
  return at::from_blob(memory, sizes, [retained](void*) { release_reference(retained); }, options);
}

py::capsule HostTensor::dlpack() const {
  const CpuDispatchScope kernels;
  return py::capsule(at::toDLPack(tensor), "dltensor", [](PyObject* capsule) {
    if (PyCapsule_IsValid(capsule, "dltensor") != 0) {  // not consumed
      auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
      managed->deleter(managed);
    }
  });
}

HostTensor HostTensor::padded(int64_t length) const {
  const CpuDispatchScope kernels;
  return {at::constant_pad_nd(tensor.reshape({-1}), {0, length - tensor.numel()}, 0)};
}

void bind_host_tensor(py::module_& m) {
  py::class_<HostTensor>(m, "HostTensor")
      .def("__dlpack__", [](const HostTensor& memory, const py::kwargs&) { return memory.dlpack(); })
      .def("__dlpack_device__", [](const HostTensor&) { return py::make_tuple(static_cast<int>(kDLCPU), 0); })
      .def("padded", &HostTensor::padded)
      .def_property_readonly("dtype",
                             [](const HostTensor& memory) { return static_cast<int>(memory.tensor.scalar_type()); })
      .def_property_readonly("shape",
                             [](const HostTensor& memory) { return py::tuple(py::cast(memory.tensor.sizes().vec())); });
}

}  // namespace torch_xla
