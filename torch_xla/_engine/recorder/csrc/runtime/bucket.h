// Buckets: one array that holds the values of many small buffers, as the gradient buckets of DistributedDataParallel.
//
// A program that takes and returns hundreds of small arrays spends most of its launch on them. A captured step
// (graph/replay_program.h) takes and returns a few buckets instead.
//
//    filled ──the array of one of its buffers is needed──► split: each buffer has an array, the bucket has none
//      └──the step that reads all its buffers overwrites it──► filled, with other values
//
// Owned by its buffers. Destroyed on any thread; everything else requires the GIL. During a launch the GIL is released now
// and then, where the program starts and where arrays are destroyed. Another thread that splits a bucket then
//   before the program starts              may still be doing so when the program takes the array: then it starts again
//   until all buffers are assigned         waits; the next launch splits the bucket, or it could wait forever
// The thread that launches may split it, too, if destroying a tensor runs Python: buffers that are assigned afterwards get
// their arrays from `parts_`.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <thread>
#include <vector>

#include "runtime/buffer.h"

namespace torch_xla {

// What the buckets of one group of a program have in common. `split`: array -> list with the array of each buffer.
struct BucketLayout {
  explicit BucketLayout(pybind11::object split_) : split(split_.release().ptr()) {}
  ~BucketLayout() { release_reference(split); }
  BucketLayout(const BucketLayout&) = delete;
  BucketLayout& operator=(const BucketLayout&) = delete;
  PyObject* const split;
  int64_t splits = 0;  // how often a bucket was split
};

class Bucket final : public c10::intrusive_ptr_target {
 public:
  Bucket(pybind11::object array, std::shared_ptr<BucketLayout> layout, size_t size);
  ~Bucket() override;
  PyObject* array() const { return array_; }  // borrowed; null once it is split
  bool is_wanted() const { return is_wanted_; }
  const std::shared_ptr<BucketLayout>& layout() const { return layout_; }
  void fill(pybind11::object array);
  void begin_launch() { launcher_ = std::this_thread::get_id(); }
  void end_launch();
  // Gives each buffer an array. Runs Python: may raise, and then nothing has changed.
  void split();

 private:
  friend struct Buffer;
  bool is_in_launch_elsewhere() const;
  PyObject* array_;
  PyObject* parts_ = nullptr;  // during a launch, if it was split: list with the array of each slot
  bool is_wanted_ = false;     // another thread waits to split it
  std::thread::id launcher_;   // the thread that launches a step with the bucket
  const std::shared_ptr<BucketLayout> layout_;
  std::vector<Buffer*> members_;  // by slot; guarded by one mutex for all buckets
};

}  // namespace torch_xla
