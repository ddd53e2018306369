// Values that could not be computed, and what needs them: the program that failed belongs to whoever asks for them, and
// all other values are computed without them.
#pragma once

#include "graph/graph.h"

namespace torch_xla {

// Takes the roots that cannot be computed, because something that they need could not, out of the graph.
void exclude_failed_roots(Graph& graph);

}  // namespace torch_xla
