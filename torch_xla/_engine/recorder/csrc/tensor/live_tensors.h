// The live tensors of a device, and their values. Collecting a graph first releases what can be recomputed
// (XlaTensor::release_recomputable).
#pragma once

#include <vector>

#include "ir/node.h"

namespace torch_xla {

// Returns the values that live tensors refer to, oldest first, one entry per reference. `walk` is the epoch of a
// traversal whose graph computes the values it has visited; 0 for none. Requires the execution lock.
std::vector<NodePtr> live_values(int8_t device, uint64_t walk = 0);

// A live tensor as it is now. It does not keep the tensor alive: another thread may be destroying it.
struct LiveTensor {
  uint64_t serial;  // XlaTensor::serial()
  uint64_t memory;  // equal for tensors that share memory, and unequal for all others
  bool is_view;
  NodePtr value;  // of a tensor that is not a view
};

// Returns the live tensors of a device, oldest first.
std::vector<LiveTensor> list_live_tensors(int8_t device);

}  // namespace torch_xla
