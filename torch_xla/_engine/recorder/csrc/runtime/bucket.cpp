#include "runtime/bucket.h"

#include <chrono>
#include <mutex>
#include <thread>

#include "support/counters.h"
#include "support/fork_safe_lock.h"
#include "support/spinlock.h"

namespace py = pybind11;
namespace torch_xla {
namespace {

SpinLock& members_mutex() {
  static auto* mutex = new SpinLock;
  return *mutex;
}

const ForkSafeLock members_fork_safe(members_mutex());

}  // namespace

Bucket::Bucket(py::object array, std::shared_ptr<BucketLayout> layout, size_t size)
    : array_(array.release().ptr()), layout_(std::move(layout)), members_(size) {}

Bucket::~Bucket() {
  if (array_ != nullptr) {
    release_reference(array_);
  }
  if (parts_ != nullptr) {
    release_reference(parts_);
  }
}

bool Bucket::is_in_launch_elsewhere() const {
  return launcher_ != std::thread::id() && launcher_ != std::this_thread::get_id();
}

void Bucket::end_launch() {
  launcher_ = {};
  Py_CLEAR(parts_);
}

void Bucket::fill(py::object array) {
  PyObject* before = std::exchange(array_, array.release().ptr());
  if (before != nullptr) {
    release_reference(before);
  }
}

// While Python runs, another thread may split the bucket, or launch the step, which fills it with other values.
void Bucket::split() {
  const auto self = c10::intrusive_ptr<Bucket>::reclaim_copy(this);
  while (array_ != nullptr) {
    if (is_in_launch_elsewhere()) {
      is_wanted_ = true;
      const py::gil_scoped_release release;  // the launch needs it to assign its results
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      continue;
    }
    const auto before = py::reinterpret_borrow<py::object>(array_);
    py::list arrays;
    try {
      arrays = py::reinterpret_borrow<py::object>(layout_->split)(before);
    } catch (const py::error_already_set&) {
      if (array_ == before.ptr() && !is_in_launch_elsewhere()) {
        throw;
      }
      continue;
    }
    if (array_ != before.ptr()) {
      continue;
    }
    TORCH_INTERNAL_ASSERT(arrays.size() == members_.size());
    {
      std::lock_guard<SpinLock> lock(members_mutex());
      for (size_t slot = 0; slot < members_.size(); ++slot) {
        if (Buffer* buffer = std::exchange(members_[slot], nullptr)) {
          buffer->array_ = PyList_GET_ITEM(arrays.ptr(), static_cast<Py_ssize_t>(slot));
          Py_INCREF(buffer->array_);
        }
      }
    }
    if (launcher_ != std::thread::id()) {
      PyObject* old = std::exchange(parts_, arrays.inc_ref().ptr());
      Py_XDECREF(old);
    }
    Py_CLEAR(array_);
    layout_->splits += 1;
    static const CounterPointer splits("BucketSplits");
    splits->add();
  }
}

Buffer::Buffer(const BucketPtr& bucket, size_t slot, int8_t device_, int64_t bytes_, uint32_t provenance_)
    : Buffer(static_cast<PyObject*>(nullptr), device_, bytes_, provenance_, 0) {
  join(bucket, slot);
}

PyObject* Buffer::array() {
  while (array_ == nullptr) {
    const BucketPtr bucket = bucket_;  // the next launch may have replaced it when split() returns
    bucket->split();
    TORCH_CHECK(array_ != nullptr || bucket_ != bucket, "Buffer has been deleted or donated.");
  }
  return array_;
}

PyObject* Buffer::storage() const { return array_ != nullptr ? array_ : bucket_->array(); }

bool Buffer::is_in(const Bucket* bucket, size_t slot) const {
  return array_ == nullptr && bucket_.get() == bucket && slot_ == slot;
}

void Buffer::renew(const BucketPtr& bucket, size_t slot, uint32_t provenance_) {
  provenance = provenance_;
  if (is_in(bucket.get(), slot)) {
    return;
  }
  leave_bucket();
  PyObject* before = std::exchange(array_, nullptr);
  join(bucket, slot);
  if (before != nullptr) {
    release_reference(before);
  }
}

void Buffer::join(const BucketPtr& bucket, size_t slot) {
  bucket_ = bucket;
  slot_ = slot;
  if (bucket->array_ == nullptr) {
    TORCH_INTERNAL_ASSERT(bucket->parts_ != nullptr);
    array_ = PyList_GET_ITEM(bucket->parts_, static_cast<Py_ssize_t>(slot));
    Py_INCREF(array_);
    return;
  }
  std::lock_guard<SpinLock> lock(members_mutex());
  bucket->members_[slot] = this;
}

void Buffer::leave_bucket() {
  if (!bucket_) {
    return;
  }
  {
    std::lock_guard<SpinLock> lock(members_mutex());
    Buffer*& member = bucket_->members_[slot_];
    member = member == this ? nullptr : member;
  }
  bucket_.reset();
}

}  // namespace torch_xla
