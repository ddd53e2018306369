// Calls from C++ into Python: hooks that any thread may call until the interpreter shuts down.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

#include "runtime/buffer.h"
#include "runtime/device.h"

namespace torch_xla {

// Holds the GIL while alive. Blocks if the interpreter is shutting down (see ShutdownGate).
class GilScope {
 public:
  GilScope();
  ~GilScope();
  GilScope(const GilScope&) = delete;
  GilScope& operator=(const GilScope&) = delete;

 private:
  std::unique_ptr<pybind11::gil_scoped_acquire> gil_;
};

// Returns nodes as Python objects. Defined in bindings.cpp, which binds the class.
pybind11::list nodes_to_python(const std::vector<NodePtr>& nodes);

void bind_interpreter(pybind11::module_& m);  // set_hooks, close

// Returns the array of a buffer. May run Python and raise: see Buffer::array.
inline pybind11::object borrow(const BufferPtr& buffer) {
  return pybind11::reinterpret_borrow<pybind11::object>(buffer->array());
}

// Makes a Buffer that takes over the reference to an array. `provenance`: see runtime/memory_stats.h; `sharding`: see
// ir/sharding.h.
BufferPtr make_buffer(pybind11::object array, int device, int64_t bytes, uint32_t provenance, uint32_t sharding);
// Makes a Buffer of a hook's result, with the provenance and sharding that the hook set for it.
BufferPtr make_buffer(pybind11::object array, int device);

}  // namespace torch_xla
