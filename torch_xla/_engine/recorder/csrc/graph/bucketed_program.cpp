#include "graph/bucketed_program.h"

#include <pybind11/stl.h>

#include <algorithm>

#include "runtime/python_hooks.h"
#include "support/counters.h"

namespace py = pybind11;
namespace torch_xla {

BucketedProgram::BucketedProgram(py::object executable, const py::list& groups, size_t sources, size_t targets)
    : executable_(std::move(executable)), source_in_group_(sources), target_in_group_(targets) {
  for (const py::handle& item : groups) {
    const auto [reads, writes, fill, split] =
        item.cast<std::tuple<std::vector<size_t>, std::vector<size_t>, py::object, py::object>>();
    TORCH_INTERNAL_ASSERT(reads.empty() || reads.size() == writes.size());
    for (const size_t i : reads) {
      source_in_group_.at(i) = true;
    }
    for (const size_t i : writes) {
      target_in_group_.at(i) = true;
    }
    groups_.push_back({reads, writes, fill, std::make_shared<BucketLayout>(split)});
  }
}

bool BucketedProgram::is_profitable() {
  int64_t splits = 0;
  for (const Group& group : groups_) {
    splits += group.layout->splits;
  }
  points_ = splits > splits_ ? points_ + 1 : std::max(points_ - 1, 0);
  splits_ = splits;
  return points_ < kMostPoints;
}

bool BucketedProgram::is_filled(const Group& group, const std::vector<NodePtr>& values) {
  const Bucket* bucket = values[group.sources[0]]->buffer->bucket();
  if (bucket == nullptr || bucket->layout() != group.layout) {
    return false;
  }
  for (size_t slot = 0; slot < group.sources.size(); ++slot) {
    if (!values[group.sources[slot]]->buffer->is_in(bucket, slot)) {
      return false;
    }
  }
  return true;
}

bool BucketedProgram::is_wanted(const Group& group, const std::vector<NodePtr>& values) {
  return values[group.sources[0]]->buffer->bucket()->is_wanted();
}

BucketedProgram::LaunchScope::~LaunchScope() {
  for (const Entry& entry : entries_) {
    entry.bucket->end_launch();
  }
}

void BucketedProgram::LaunchScope::add(BucketPtr bucket, bool taken) {
  bucket->begin_launch();
  PyObject* array = bucket->array();
  entries_.push_back({std::move(bucket), array, taken});
}

void BucketedProgram::LaunchScope::drop_taken() {
  for (const Entry& entry : entries_) {
    if (entry.taken && entry.bucket->array() == entry.array) {
      entry.bucket->fill({});
    }
  }
}

void BucketedProgram::add_inputs(LaunchScope& scope, const std::vector<NodePtr>& values) const {
  for (const Group& group : groups_) {
    if (!group.sources.empty()) {
      scope.add(BucketPtr::reclaim_copy(values[group.sources[0]]->buffer->bucket()), /*taken=*/true);
    }
  }
}

bool BucketedProgram::fill_buckets(const std::vector<NodePtr>& values, LaunchScope& scope) const {
  bool ran = false;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!has_source(i) && values[i] && values[i]->buffer->bucket() != nullptr) {
      values[i]->buffer->array();
      ran = true;
    }
  }
  for (const Group& group : groups_) {
    if (group.sources.empty() || (is_filled(group, values) && !is_wanted(group, values))) {
      continue;
    }
    ran = true;
    py::list arrays;
    for (const size_t i : group.sources) {
      arrays.append(borrow(values[i]->buffer));
    }
    const auto bucket = c10::make_intrusive<Bucket>(group.fill(arrays), group.layout, group.sources.size());
    scope.add(bucket);
    for (size_t slot = 0; slot < group.sources.size(); ++slot) {
      Buffer& buffer = *values[group.sources[slot]]->buffer;
      buffer.renew(bucket, slot, buffer.provenance);
    }
    static const CounterPointer fills("BucketFills");
    fills->add();
  }
  return ran;
}

}  // namespace torch_xla
