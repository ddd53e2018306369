// The execution lock of a device, which its owner holds from collecting a graph to launching it. Not the device's
// mutex: it is held for as long as a compilation takes, and waited for without the GIL.
//
// No other thread of a forked child holds one: there all are made anew.
#pragma once

#include <pybind11/pybind11.h>

#include "runtime/ordinal.h"

namespace torch_xla {

// Calls `function(*args)` as the only thread that collects or launches graphs of this device. RuntimeError where this
// thread does so already: a __del__ method or a signal handler in the middle of a step.
pybind11::object with_execution_lock(Ordinal device, const pybind11::function& function, const pybind11::args& args);

}  // namespace torch_xla
