// Which buffers a program may overwrite with its results.
#pragma once

#include <vector>

#include "graph/graph.h"
#include "graph/post_order.h"

namespace torch_xla {

// Notes in `graph` the leaves that nothing can read afterwards, and orders its roots so that each is written over the
// leaf that it is made of. `live`: what live_values() gave; `walk`: that of all the graph's roots. Changes the nodes'
// `uses`.
void select_donated_leaves(Graph& graph, const std::vector<NodePtr>& live, const PostOrder& walk);

}  // namespace torch_xla
