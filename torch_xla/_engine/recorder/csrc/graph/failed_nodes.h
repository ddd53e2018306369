// Values that could not be computed, and their users: reading such a value raises the error of the failed program; all
// other values are computed without them.
#pragma once

#include "graph/graph.h"

namespace torch_xla {

// Removes the roots that need a failed value from the graph.
void exclude_failed_roots(Graph& graph);

}  // namespace torch_xla
