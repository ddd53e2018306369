// The program of a captured step that reads and writes many small values in buckets (runtime/bucket.h).
//
// Owned by its ReplayProgram, which drops it when the user reads the values so often that splitting and filling buckets
// costs more than they save: each launch after a split adds a point, any other takes one away, and it ends at kMostPoints.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

#include "graph/launch.h"
#include "ir/node.h"
#include "runtime/bucket.h"

namespace torch_xla {

class BucketedProgram {
 public:
  struct Group {
    std::vector<size_t> sources;  // by slot; empty if the step only writes the values
    std::vector<size_t> targets;  // by slot: each overwrites the source of that slot, if there are sources
    pybind11::object fill;        // list of arrays -> the bucket's array
    std::shared_ptr<BucketLayout> layout;
  };

  // The buckets that one launch takes, then also those that it makes.
  class LaunchScope {
   public:
    LaunchScope() = default;
    ~LaunchScope();
    // `taken`: the program overwrites the array.
    void add(BucketPtr bucket, bool taken = false);
    // Empties buckets that got no new array: their buffers have other buckets, or arrays.
    void drop_taken();
    LaunchScope(const LaunchScope&) = delete;
    LaunchScope& operator=(const LaunchScope&) = delete;

   private:
    struct Entry {
      BucketPtr bucket;
      PyObject* array;
      bool taken;
    };
    std::vector<Entry> entries_;
  };

  // `executable` takes the sources that are in no group, then a bucket per group with sources; it returns the targets
  // that are in no group, then a bucket per group. `groups`: (sources, targets, fill, split) of each.
  BucketedProgram(pybind11::object executable, const pybind11::list& groups, size_t sources, size_t targets);

  const Executable& executable() const { return executable_.cast<const Executable&>(); }
  const std::vector<Group>& groups() const { return groups_; }
  bool has_source(size_t i) const { return source_in_group_[i]; }
  bool has_target(size_t i) const { return target_in_group_[i]; }
  // Returns whether to launch it once more. Call it once per launch.
  bool is_profitable();
  // Moves the values of all groups to buckets. Returns whether it ran Python: what was read before may have changed.
  bool fill_buckets(const std::vector<NodePtr>& values, LaunchScope& scope) const;
  void add_inputs(LaunchScope& scope, const std::vector<NodePtr>& values) const;
  static bool is_filled(const Group& group, const std::vector<NodePtr>& values);

 private:
  static bool is_wanted(const Group& group, const std::vector<NodePtr>& values);
  static constexpr int kMostPoints = 8;
  pybind11::object executable_;
  std::vector<Group> groups_;
  std::vector<bool> source_in_group_;
  std::vector<bool> target_in_group_;
  int64_t splits_ = 0;
  int points_ = 0;
};

}  // namespace torch_xla
