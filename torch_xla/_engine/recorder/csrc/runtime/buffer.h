// Buffers: references from C++ to jax.Arrays, and their release on any thread.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <vector>

struct _object;  // PyObject

namespace torch_xla {

class Bucket;
using BucketPtr = c10::intrusive_ptr<Bucket>;

// Owns one reference to a jax.Array, or has a slot of a bucket (runtime/bucket.h) until its array is needed. May be
// destroyed on any thread: without the GIL the reference is parked, and the next thread that holds the GIL drops it
// (drain_parked_buffers). At interpreter exit it is leaked deliberately. While alive it counts towards the memory of
// its device (runtime/memory_stats.h).
struct Buffer final : c10::intrusive_ptr_target {
  Buffer(_object* array, int8_t device, int64_t bytes, uint32_t provenance, uint32_t sharding);  // steals the reference
  Buffer(const BucketPtr& bucket, size_t slot, int8_t device, int64_t bytes, uint32_t provenance);
  ~Buffer() override;
  // Returns a borrowed reference. GIL held. Splits the bucket: may run Python and raise.
  _object* array();
  // Returns a borrowed reference to the array that has the value, which may be that of the bucket; null if the value is
  // gone.
  _object* storage() const;
  void donate();  // a result takes over its memory: no longer counted
  // Replaces the array by the result that took over its memory; steals the reference. GIL held; nothing else refers to
  // the Buffer.
  void renew(_object* array, uint32_t provenance);
  void renew(const BucketPtr& bucket, size_t slot, uint32_t provenance);
  // Returns the bucket that has the value; null if there is none, or the bucket is split.
  Bucket* bucket() const { return array_ == nullptr ? bucket_.get() : nullptr; }
  bool is_in(const Bucket* bucket, size_t slot) const;
  const int64_t bytes;
  uint32_t provenance;      // see runtime/memory_stats.h
  const uint32_t sharding;  // see ir/sharding.h
  const int8_t device;

 private:
  friend class Bucket;
  friend BucketPtr find_filled_bucket(int8_t device);
  friend std::vector<struct BufferEntry> list_buffers(int8_t device);
  void count();
  void join(const BucketPtr& bucket, size_t slot);
  void leave_bucket();
  _object* array_;    // null while the bucket has the value
  BucketPtr bucket_;  // kept when it is split
  size_t slot_ = 0;
  Buffer* previous_ = nullptr;  // guarded by the mutex of the device's memory statistics
  Buffer* next_ = nullptr;
  bool counted_ = false;
};
using BufferPtr = c10::intrusive_ptr<Buffer>;
void drain_parked_buffers();  // GIL held
// Releases a Python reference: immediately if this thread holds the GIL, else when a graph is next collected or a tensor
// is uploaded.
void release_reference(_object* object);
void leak_buffers();  // from now on no Python reference is released

}  // namespace torch_xla
