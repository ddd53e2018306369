// The execution lock of a device, held from collecting a graph to launching it. Unlike the device's mutex it is held
// during a compilation, and threads wait for it without the GIL. A forked child reinitializes it.
#pragma once

#include <pybind11/pybind11.h>

#include "runtime/ordinal.h"

namespace torch_xla {

// Calls `function(*args)` while holding the execution lock of the device. Raises RuntimeError if this thread already
// holds it: a __del__ method or signal handler ran in the middle of a step.
pybind11::object with_execution_lock(Ordinal device, const pybind11::function& function, const pybind11::args& args);

}  // namespace torch_xla
