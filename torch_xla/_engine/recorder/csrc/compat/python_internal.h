// The part of compat/torch_internal.h that requires Python's headers: dispatcher values as Python objects.
#pragma once

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

namespace torch_xla::compat {

// Returns a dispatcher value (number, list, dtype, generator) as torch's bindings pass it to Python.
inline pybind11::object to_python(const c10::IValue& value) { return torch::jit::toPyObject(value); }

// Call in a catch block around code that may run Python, such as torch's meta functions: rethrows a KeyboardInterrupt
// or a SystemExit, which `except Exception` would not catch and a fallback must not swallow. Returns for any other
// error.
inline void raise_interrupts() {
  const auto is_interrupt = [](PyObject* type) {
    return type != nullptr && !PyErr_GivenExceptionMatches(type, PyExc_Exception);
  };
  try {
    throw;
  } catch (const python_error& error) {
    const pybind11::gil_scoped_acquire gil;
    if (is_interrupt(error.type)) {
      throw;
    }
  } catch (const pybind11::error_already_set& error) {
    const pybind11::gil_scoped_acquire gil;
    if (is_interrupt(error.type().ptr())) {
      throw;
    }
  } catch (...) {
  }
}

}  // namespace torch_xla::compat
