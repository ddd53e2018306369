#include "runtime/memory_stats.h"

#include <Python.h>

#include <algorithm>
#include <mutex>

#include "runtime/bucket.h"
#include "runtime/device.h"
#include "support/fork_safe_lock.h"
#include "support/spinlock.h"

namespace torch_xla {
namespace {

// The counted buffers of one device, in an intrusive list. `mutex` is a leaf lock: do not wait for the GIL while
// holding it.
struct DeviceMemoryStats {
  SpinLock mutex;
  Buffer* first = nullptr;
  Buffer* last = nullptr;
  MemoryUse use;
};

DeviceMemoryStats& stats_of(int8_t device) {
  static auto* all_stats = new DeviceMemoryStats[kMaxDevices];
  return all_stats[device];
}

const bool stats_fork_safe = [] {
  for (int device = 0; device < kMaxDevices; ++device) {
    ForkSafeLock(stats_of(static_cast<int8_t>(device)).mutex);
  }
  return true;
}();

thread_local uint32_t pending_provenance = 0;

void update_peak(DeviceMemoryStats& stats, int64_t bytes) {
  stats.use.peak = std::max(stats.use.peak, bytes);
  stats.use.highest = std::max(stats.use.highest, bytes);
}

}  // namespace

void Buffer::count() {
  DeviceMemoryStats& stats = stats_of(device);
  std::lock_guard<SpinLock> lock(stats.mutex);
  counted_ = true;
  previous_ = stats.last;
  (stats.last ? stats.last->next_ : stats.first) = this;
  stats.last = this;
  stats.use.bytes += bytes;
  stats.use.buffers += 1;
  update_peak(stats, stats.use.bytes);
}

void Buffer::donate() {
  DeviceMemoryStats& stats = stats_of(device);
  std::lock_guard<SpinLock> lock(stats.mutex);
  if (!counted_) {
    return;
  }
  counted_ = false;
  (previous_ ? previous_->next_ : stats.first) = next_;
  (next_ ? next_->previous_ : stats.last) = previous_;
  stats.use.bytes -= bytes;
  stats.use.buffers -= 1;
}

MemoryUse memory_use(int8_t device) {
  DeviceMemoryStats& stats = stats_of(device);
  std::lock_guard<SpinLock> lock(stats.mutex);
  return stats.use;
}

void add_workspace_peak(int8_t device, int64_t bytes) {
  DeviceMemoryStats& stats = stats_of(device);
  std::lock_guard<SpinLock> lock(stats.mutex);
  update_peak(stats, stats.use.bytes + bytes);
}

int64_t take_peak(int8_t device) {
  DeviceMemoryStats& stats = stats_of(device);
  std::lock_guard<SpinLock> lock(stats.mutex);
  const int64_t peak = stats.use.peak;
  stats.use.peak = stats.use.bytes;
  return peak;
}

void set_provenance(uint32_t provenance) { pending_provenance = provenance; }

uint32_t take_provenance() {
  const uint32_t provenance = pending_provenance;
  pending_provenance = 0;
  return provenance;
}

BucketPtr find_filled_bucket(int8_t device) {
  DeviceMemoryStats& stats = stats_of(device);
  std::lock_guard<SpinLock> lock(stats.mutex);
  for (const Buffer* buffer = stats.first; buffer != nullptr; buffer = buffer->next_) {
    if (buffer->array_ == nullptr) {
      return buffer->bucket_;
    }
  }
  return {};
}

std::vector<BufferEntry> list_buffers(int8_t device) {
  DeviceMemoryStats& stats = stats_of(device);
  std::vector<BufferEntry> out;
  out.reserve(static_cast<size_t>(memory_use(device).buffers) + 64);
  std::lock_guard<SpinLock> lock(stats.mutex);
  // A Buffer whose destructor waits for the mutex still owns its array.
  for (const Buffer* buffer = stats.first; buffer != nullptr; buffer = buffer->next_) {
    Py_INCREF(buffer->array_);
    out.push_back({buffer->array_, buffer->bytes, buffer->provenance});
  }
  return out;
}

}  // namespace torch_xla
