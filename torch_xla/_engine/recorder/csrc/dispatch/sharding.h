// How values lie on several devices, where one process drives them all (SPMD).
//
// A sharding is a number that means something to the Python side only (sharding_ids.py); 0 is that of a value on one
// device, or one that nobody has chosen: the compiler then chooses, and the buffer says what it chose. It belongs to a
// value, is part of the key of a graph that reads it, and stays with a tensor that is written to in place: what an
// optimizer updates lies as it lay before.
#pragma once

#include "ir/node.h"

namespace torch_xla {

// The same value, laid out as `sharding` says. `origin` is where that was asked for.
NodePtr reshard(const NodePtr& value, uint32_t sharding, uint32_t origin);

// `value`, laid out as `kept` is; `value` itself where that has no sharding, or the same.
inline NodePtr with_sharding_of(const Node& kept, NodePtr value) {
  const uint32_t sharding = kept.sharding.load(std::memory_order_relaxed);
  if (C10_LIKELY(sharding == 0) || value->sharding.load(std::memory_order_relaxed) == sharding) {
    return value;
  }
  return reshard(value, sharding, value->origin);
}

// Of the next buffer that this thread makes: its sharding, and its bytes on one device; -1: those of the whole array.
struct PendingSharding {
  uint32_t sharding = 0;
  int64_t bytes = -1;
};

// Until take_sharding(). As set_maker().
void set_sharding(uint32_t sharding, int64_t bytes);
PendingSharding take_sharding();

// Whether any value of this process has ever had a sharding.
bool any_sharded();

}  // namespace torch_xla
