// Identity of tensors: ids, and storages that identify shared memory.
#include "tensor/xla_tensor.h"

namespace torch_xla {
namespace {

// Ids start at 1. Atomic, because tensors are guarded by the mutexes of several devices.
uint64_t next_number(std::atomic<uint64_t>& last) { return last.fetch_add(1, std::memory_order_relaxed) + 1; }

uint64_t next_id() {
  static std::atomic<uint64_t> last{0};
  return next_number(last);
}

uint64_t next_storage_id() {
  static std::atomic<uint64_t> last{0};
  return next_number(last);
}

// Returns an address outside of any process's address space: reading it faults instead of returning foreign data.
void* next_address(size_t bytes) {
  constexpr uint64_t kLine = 64;
  static std::atomic<uint64_t> next{1ull << 56};
  return reinterpret_cast<void*>(next.fetch_add((bytes / kLine + 1) * kLine, std::memory_order_relaxed));
}

c10::Storage make_storage(void* address, size_t bytes, c10::Device device) {
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes, c10::DataPtr(address, device), nullptr, false);
}

}  // namespace

uint64_t XlaTensor::id() {
  std::lock_guard<SpinLock> lock(device_state(index_).mutex);
  ensure_view();
  uint64_t& id = view_ ? view_->id : alias_ ? alias_->id : id_;
  if (id == 0) {
    id = next_id();
  }
  return id;
}

uint64_t XlaTensor::storage_id() {
  std::lock_guard<SpinLock> lock(device_state(index_).mutex);
  if (!alias_ || alias_.use_count() == 1) {
    return 0;
  }
  if (alias_->storage_id == 0) {
    alias_->storage_id = next_storage_id();
  }
  return alias_->storage_id;
}

size_t XlaTensor::storage_bytes() const {
  const Shape& shape = (alias_ ? alias_->value : node_)->shape();
  return static_cast<size_t>(shape.elements()) * c10::elementSize(shape.dtype);
}

const c10::Storage& XlaTensor::storage() const {
  auto* self = const_cast<XlaTensor*>(this);
  if (storage_) {
    return storage_;
  }
  const c10::Device place(c10::DeviceType::XLA, index_);
  size_t bytes;
  {
    std::lock_guard<SpinLock> lock(device_state(index_).mutex);
    bytes = storage_bytes();
  }
  const c10::Storage new_storage = make_storage(next_address(bytes), bytes, place);
  c10::Storage storage = new_storage;
  {
    std::lock_guard<SpinLock> lock(device_state(index_).mutex);
    if (alias_ && alias_->storage) {
      storage = alias_->storage;
    } else if (alias_) {
      alias_->storage = new_storage;
    }
  }
  // An expanded tensor appears contiguous, and must not be larger than its storage.
  const size_t own = static_cast<size_t>(numel()) * dtype().itemsize();
  self->storage_ = own > bytes ? make_storage(storage.mutable_data(), own, place) : storage;
  return storage_;
}

}  // namespace torch_xla
