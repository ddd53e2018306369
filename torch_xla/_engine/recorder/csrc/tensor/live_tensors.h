// The live tensors of a device, and the values that they hold. A collection settles each first: what can be computed
// again is given up (XlaTensor::settle).
#pragma once

#include <vector>

#include "ir/node.h"

namespace torch_xla {

// The values that live tensors refer to, oldest first, an entry per reference. `walk` is the epoch of a walk whose
// graph computes the values that it has seen; 0 for none. Under the execution lock.
std::vector<NodePtr> live_values(int8_t device, uint64_t walk = 0);

}  // namespace torch_xla
