// Why a graph runs, as far as who asked for it has said: diagnostics/sync_reasons.py.
#pragma once

#include <pybind11/pybind11.h>

namespace torch_xla {

void bind_reasons(pybind11::module_& m);

}  // namespace torch_xla
