#include "runtime/buffer.h"

#include <Python.h>

#include <atomic>
#include <mutex>
#include <utility>

#include "runtime/bucket.h"
#include "support/counters.h"
#include "support/fork_safe_lock.h"

namespace torch_xla {
namespace {

struct Parked {
  std::mutex mutex;
  std::vector<PyObject*> arrays;
  std::atomic<bool> leaked{false};
};

Parked& parked() {
  static auto* p = new Parked;
  return *p;
}

const ForkSafeLock parked_fork_safe(parked().mutex);

}  // namespace

void release_reference(PyObject* object) {
  if (parked().leaked.load(std::memory_order_acquire)) {
    return;
  }
  if (PyGILState_Check()) {
    Py_DECREF(object);
    return;
  }
  std::lock_guard<std::mutex> lock(parked().mutex);
  parked().arrays.push_back(object);
}

Buffer::Buffer(PyObject* array, int8_t device_, int64_t bytes_, uint32_t provenance_, uint32_t sharding_)
    : bytes(bytes_), provenance(provenance_), sharding(sharding_), device(device_), array_(array) {
  static const CounterPointer created("CreateDataHandles");
  created->add();
  count();
}

Buffer::~Buffer() {
  static const CounterPointer destroyed("DestroyDataHandles");
  destroyed->add();
  donate();
  leave_bucket();
  if (array_ != nullptr) {
    release_reference(array_);
  }
}

void Buffer::renew(PyObject* array, uint32_t provenance_) {
  leave_bucket();
  PyObject* before = std::exchange(array_, array);
  provenance = provenance_;
  if (before != nullptr) {
    release_reference(before);
  }
}

void drain_parked_buffers() {
  if (parked().leaked.load(std::memory_order_acquire)) {
    return;
  }
  std::vector<PyObject*> arrays;
  {
    std::lock_guard<std::mutex> lock(parked().mutex);
    arrays.swap(parked().arrays);
  }
  for (PyObject* array : arrays) {
    Py_DECREF(array);
  }
}

void leak_buffers() { parked().leaked.store(true, std::memory_order_release); }

}  // namespace torch_xla
