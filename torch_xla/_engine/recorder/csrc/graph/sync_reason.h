// Why a graph runs, as set by the caller of the sync: diagnostics/sync_reasons.py.
#pragma once

#include <pybind11/pybind11.h>

namespace torch_xla {

void bind_sync_reasons(pybind11::module_& m);

}  // namespace torch_xla
