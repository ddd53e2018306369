#include "runtime/memory_stats.h"

#include <Python.h>

#include <algorithm>
#include <mutex>

#include "runtime/device.h"
#include "support/fork_safe_lock.h"
#include "support/spinlock.h"

namespace torch_xla {
namespace {

// The counted buffers of one device, in a list through the buffers themselves. `mutex` is a leaf lock: nobody waits for
// the GIL under it.
struct DeviceMemoryStats {
  SpinLock mutex;
  Buffer* first = nullptr;
  Buffer* last = nullptr;
  MemoryUse use;
};

DeviceMemoryStats& account_of(int8_t device) {
  static auto* accounts = new DeviceMemoryStats[kMaxDevices];
  return accounts[device];
}

const bool accounts_held = [] {
  for (int device = 0; device < kMaxDevices; ++device) {
    ForkSafeLock(account_of(static_cast<int8_t>(device)).mutex);
  }
  return true;
}();

thread_local uint32_t provenance_of_thread = 0;

void raise_peak(DeviceMemoryStats& account, int64_t bytes) {
  account.use.peak = std::max(account.use.peak, bytes);
  account.use.highest = std::max(account.use.highest, bytes);
}

}  // namespace

void Buffer::count() {
  DeviceMemoryStats& account = account_of(device);
  std::lock_guard<SpinLock> lock(account.mutex);
  counted_ = true;
  before_ = account.last;
  (account.last ? account.last->after_ : account.first) = this;
  account.last = this;
  account.use.bytes += bytes;
  account.use.buffers += 1;
  raise_peak(account, account.use.bytes);
}

void Buffer::donate() {
  DeviceMemoryStats& account = account_of(device);
  std::lock_guard<SpinLock> lock(account.mutex);
  if (!counted_) {
    return;
  }
  counted_ = false;
  (before_ ? before_->after_ : account.first) = after_;
  (after_ ? after_->before_ : account.last) = before_;
  account.use.bytes -= bytes;
  account.use.buffers -= 1;
}

MemoryUse memory_use(int8_t device) {
  DeviceMemoryStats& account = account_of(device);
  std::lock_guard<SpinLock> lock(account.mutex);
  return account.use;
}

void add_workspace_peak(int8_t device, int64_t bytes) {
  DeviceMemoryStats& account = account_of(device);
  std::lock_guard<SpinLock> lock(account.mutex);
  raise_peak(account, account.use.bytes + bytes);
}

int64_t take_peak(int8_t device) {
  DeviceMemoryStats& account = account_of(device);
  std::lock_guard<SpinLock> lock(account.mutex);
  const int64_t peak = account.use.peak;
  account.use.peak = account.use.bytes;
  return peak;
}

void set_provenance(uint32_t provenance) { provenance_of_thread = provenance; }

uint32_t take_provenance() {
  const uint32_t provenance = provenance_of_thread;
  provenance_of_thread = 0;
  return provenance;
}

std::vector<BufferEntry> list_buffers(int8_t device) {
  DeviceMemoryStats& account = account_of(device);
  std::vector<BufferEntry> out;
  out.reserve(static_cast<size_t>(memory_use(device).buffers) + 64);
  std::lock_guard<SpinLock> lock(account.mutex);
  // A Buffer whose destructor waits for the mutex still owns its array.
  for (const Buffer* buffer = account.first; buffer != nullptr; buffer = buffer->after_) {
    Py_INCREF(buffer->array);
    out.push_back({buffer->array, buffer->bytes, buffer->provenance});
  }
  return out;
}

}  // namespace torch_xla
