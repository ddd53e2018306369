// The way from C++ into Python: hooks that any thread may call, until the interpreter ends.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "ir/node.h"

namespace torch_xla {

// Inside Python, with the GIL, while it lives. Waits where the interpreter is ending (see InterpreterGate).
class GilScope {
 public:
  GilScope();
  ~GilScope();
  GilScope(const GilScope&) = delete;
  GilScope& operator=(const GilScope&) = delete;

 private:
  std::unique_ptr<pybind11::gil_scoped_acquire> gil_;
};

void bind_interpreter(pybind11::module_& m);  // set_hooks, close

inline pybind11::object borrow(const BufferPtr& buffer) {
  return pybind11::reinterpret_borrow<pybind11::object>(buffer->array);
}

// A Buffer of an array, which gives up its reference. `provenance`: see runtime/memory_stats.h; `sharding`: see dispatch/sharding.h.
BufferPtr make_buffer(pybind11::object array, int device, int64_t bytes, uint32_t provenance, uint32_t sharding);
// The same of what a hook has made, which may have said where the buffer comes from, and how it lies.
BufferPtr make_buffer(pybind11::object array, int device);

}  // namespace torch_xla
