// Adds device activity to torch.profiler. See diagnostics/profiler_spans.py.
#pragma once

#include <pybind11/pybind11.h>

namespace torch_xla {

void bind_profiler(pybind11::module_& m);

}  // namespace torch_xla
