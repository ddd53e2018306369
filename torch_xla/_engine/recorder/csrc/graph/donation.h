// Buffer donation: selects the input buffers that a program may overwrite with its results.
#pragma once

#include <vector>

#include "graph/graph.h"
#include "graph/post_order.h"

namespace torch_xla {

// Sets the donated leaves of `graph`, and reorders its roots so that each overwrites the leaf that it is derived from.
// `live`: the result of live_values(); `walk`: the traversal of all roots. Changes the nodes' `uses`.
void select_donated_leaves(Graph& graph, const std::vector<NodePtr>& live, const PostOrder& walk);

}  // namespace torch_xla
