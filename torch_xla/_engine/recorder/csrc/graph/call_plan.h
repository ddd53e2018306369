// Calls of functions that are recorded once: a plan for each signature, made in Python (capture/pure_function.py), which a call
// follows without Python, without the dispatcher, and without an autograd Function of Python's.
//
//   Plan.call(tensors) -> a torch_xla::jax_call Node -> results            kept for backward: inputs, further results
//   backward           -> another one                -> gradients          its function asked of Python once for each
//                                                                          choice of results that have a gradient
#pragma once

#include <pybind11/pybind11.h>

namespace torch_xla {

void bind_calls(pybind11::module_& m);  // Plan

}  // namespace torch_xla
