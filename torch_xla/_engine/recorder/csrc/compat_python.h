// The part of compat.h that needs Python's headers: tensors and values of the dispatcher as Python objects.
#pragma once

#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

namespace torch_xla::compat {

// A value of the dispatcher (a number, a list, a dtype, a generator) as torch's own binding gives it to Python.
inline pybind11::object to_python(const c10::IValue& value) { return torch::jit::toPyObject(value); }

}  // namespace torch_xla::compat
