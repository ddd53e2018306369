// The part of compat/torch_internal.h that needs Python's headers: tensors and values of the dispatcher as Python objects.
#pragma once

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

namespace torch_xla::compat {

// A value of the dispatcher (a number, a list, a dtype, a generator) as torch's own binding gives it to Python.
inline pybind11::object to_python(const c10::IValue& value) { return torch::jit::toPyObject(value); }

// For a catch block around what may run Python (torch's meta functions do): raises the error again where it is none
// that `except Exception` would see, but a KeyboardInterrupt or an exit, which no other way of doing the same may
// swallow.
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
