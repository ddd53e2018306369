#include "dispatch/graph_size_limit.h"

#include <utility>

#include "runtime/device.h"

namespace torch_xla {
namespace {

// The device that this thread must flush before it records another op; -1 for none. The thread-local is read only once
// any thread has set one, because access costs a call.
thread_local int8_t flush_due = -1;
std::atomic<bool> any_flush_due{false};

}  // namespace

std::atomic<int64_t>& pending_limit() {
  static std::atomic<int64_t> limit{10000};
  return limit;
}

void count_pending(int8_t device, int64_t ops) {
  auto& pending = device_state(device).pending;
  if (pending.fetch_add(ops, std::memory_order_relaxed) + ops >= pending_limit().load(std::memory_order_relaxed)) {
    if (is_eager()) {
      hooks().flush(device);
    } else {
      flush_due = device;
      any_flush_due.store(true, std::memory_order_relaxed);
    }
  }
  block_if_shutting_down();
}

void flush_if_over_limit() {
  if (C10_UNLIKELY(any_flush_due.load(std::memory_order_relaxed) && flush_due >= 0)) {
    hooks().flush(std::exchange(flush_due, -1));
  }
}

bool is_eager() { return pending_limit().load(std::memory_order_relaxed) == 1; }

}  // namespace torch_xla
