// The live tensors of a device, and their values. Collecting a graph first releases what can be recomputed
// (XlaTensor::release_recomputable).
#pragma once

#include <vector>

#include "ir/node.h"

namespace torch_xla {

// Returns the values that live tensors refer to, oldest first, one entry per reference. `walk` is the epoch of a
// traversal whose graph computes the values it has visited; 0 for none. Requires the execution lock.
std::vector<NodePtr> live_values(int8_t device, uint64_t walk = 0);

}  // namespace torch_xla
