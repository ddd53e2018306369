// Forwards a slice of a concatenation to the operand that contains it.
//
// A text generation loop appends a token and reads the last one: cat([ids, token], 1)[:, -1:] is the token, whatever
// `ids` is. Read through the concatenation, `ids` would be an input of the graph, so each length would compile a new
// program.
#pragma once

#include "ir/node.h"

namespace torch_xla {

// Replaces inputs of a pending node that are a slice or select of a pending concatenation, within one of its operands,
// by the same slice of that operand. Their values do not change. Requires the execution lock; call it before traversing
// the inputs.
void forward_through_concat(Node& node);

}  // namespace torch_xla
