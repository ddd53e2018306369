// Call plans of functions that are recorded once: one plan per input signature, made in Python
// (capture/pure_function.py). A call that follows a plan runs no Python, no dispatcher and no Python autograd Function.
//
//  Plan.call(tensors) -> a torch_xla::jax_call Node -> results     saved for backward: inputs, additional results
//  backward           -> another jax_call Node      -> gradients   its function is requested from Python once per set
//                                                                  of results that have a gradient
#pragma once

#include <pybind11/pybind11.h>

namespace torch_xla {

void bind_calls(pybind11::module_& m);  // Plan

}  // namespace torch_xla
