// The sharding of the next buffer: set by Python before it returns an array, read when a Buffer is made of it.
#pragma once

#include <cstdint>

namespace torch_xla {

// Attributes of the next buffer that this thread makes: its sharding, and its bytes on one device; -1: the bytes of the
// full array.
struct PendingSharding {
  uint32_t sharding = 0;
  int64_t bytes = -1;
};

// Sets the attributes for the next take_sharding(). Like set_provenance().
void set_sharding(uint32_t sharding, int64_t bytes);
// Sets the bytes of a buffer without a sharding; the sharding of the next buffer, if it has one, decides them.
void set_unsharded_bytes(int64_t bytes);
PendingSharding take_sharding();

// Returns whether any value of this process has ever had a sharding.
bool any_sharded();

}  // namespace torch_xla
