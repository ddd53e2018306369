#include "runtime/pending_sharding.h"

#include <atomic>
#include <utility>

namespace torch_xla {
namespace {

thread_local PendingSharding pending;
std::atomic<bool> any{false};

}  // namespace

void set_sharding(uint32_t sharding, int64_t bytes) {
  pending = {sharding, bytes};
  any.store(true, std::memory_order_relaxed);
}

void set_unsharded_bytes(int64_t bytes) {
  if (pending.bytes < 0) {
    pending.bytes = bytes;
  }
}

PendingSharding take_sharding() { return std::exchange(pending, PendingSharding()); }

bool any_sharded() { return any.load(std::memory_order_relaxed); }

}  // namespace torch_xla
