// Edges of a graph that need not go through all of a concatenation to read a part of it.
//
// A loop that generates text appends a token to what there is and reads the last one: cat([ids, token], 1)[:, -1:] is
// the token, whatever `ids` are. Read through the concatenation, it would be in the graph, with a shape of its own, and
// so a program of its own, for each length.
#pragma once

#include "ir/node.h"

namespace torch_xla {

// Leads those inputs of a pending node that are a slice or a selection within one operand of a pending concatenation to
// that operand. Their values stay what they are. Under the execution lock, before the node's inputs are walked.
void forward_through_concat(Node& node);

}  // namespace torch_xla
