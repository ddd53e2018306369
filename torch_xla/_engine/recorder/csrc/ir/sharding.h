// Shardings of values over several devices, where one process drives them all (SPMD).
//
// A sharding is an id that only the Python side interprets (sharding_ids.py). 0 means a single-device value, or an
// unspecified sharding: the compiler chooses one, and the result's buffer records it. A sharding belongs to a value, is
// part of the key of a graph that reads it, and is preserved by in-place writes: optimizer updates keep the parameters'
// shardings.
#pragma once

#include "ir/node.h"

namespace torch_xla {

// Returns a node with the same value and another sharding. `origin` is the source location of the request.
NodePtr reshard(const NodePtr& value, uint32_t sharding, uint32_t origin);

// Looks up the reshard op: call it before the first value is sharded, because reshard() may run under a lock.
void prepare_reshard();

// Returns `value` with the sharding of `like`; `value` itself if `like` has none, or the same.
inline NodePtr with_sharding_of(const Node& like, NodePtr value) {
  const uint32_t sharding = like.sharding.load(std::memory_order_relaxed);
  if (C10_LIKELY(sharding == 0) || value->sharding.load(std::memory_order_relaxed) == sharding) {
    return value;
  }
  return reshard(value, sharding, value->origin);
}

}  // namespace torch_xla
