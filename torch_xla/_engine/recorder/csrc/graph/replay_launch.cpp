// ReplayProgram::launch: collects the values, starts the program, assigns its results.
#include <pybind11/stl.h>

#include <algorithm>
#include <mutex>

#include "compat/torch_internal.h"
#include "graph/post_order.h"
#include "graph/replay_program.h"
#include "ir/rng_state.h"
#include "ir/source_location.h"
#include "runtime/device.h"
#include "runtime/memory_stats.h"
#include "runtime/python_hooks.h"
#include "support/counters.h"

namespace py = pybind11;
namespace torch_xla {
namespace {

uint32_t sharding_of(const Executable& executable, size_t i) {
  return executable.shardings.empty() ? 0 : executable.shardings[i];
}

}  // namespace

struct ReplayProgram::Launch {
  const std::vector<at::Tensor>& arguments;
  std::vector<NodePtr> values;  // of each source; null for a constant
  std::vector<char> is_owned;   // of each source: only its tensor refers to the value, and no weak reference does
  std::vector<at::Tensor> results;
  bool is_bucketed = false;
  BucketedProgram::LaunchScope buckets;
  std::vector<char> is_renewed;  // of each source: its Node and Buffer get the result that overwrites it
  uint32_t provenance = 0;
};

// The device's mutex is held.
std::optional<std::string> ReplayProgram::gather_source(Launch& launch, size_t i, uint64_t epoch) const {
  const Source& source = sources_[i];
  const at::Tensor& t = tensor_at(source.place, launch.arguments);
  const XlaTensor* x = maybe_xla(t);
  if (x == nullptr || x->device_index() != device_) {
    return "a tensor that is no longer on the device";
  }
  if (x->is_view()) {
    return "a tensor that is a view";
  }
  const NodePtr& value = x->base_value_locked();
  if (value->pending() || !value->buffer) {
    return "a tensor that could not be computed";
  }
  if (layout_hash(*value) != source.layout) {
    return "the shape, dtype or sharding of a tensor";
  }
  if (value->epoch == epoch) {
    return "two tensors that share one value";
  }
  value->epoch = epoch;
  if (source.dies && t.use_count() != 1) {
    return "a gradient that is still used elsewhere";
  }
  if (source.donated && !x->owns_alone_locked(value)) {
    return "a tensor whose value another tensor shares, such as one that state_dict() returned";
  }
  launch.is_owned[i] =
      static_cast<char>(source.donated && !x->is_memory_shared_locked() && value.weak_use_count() == 1);
  launch.values[i] = value;
  return std::nullopt;
}

std::optional<std::string> ReplayProgram::gather(Launch& launch) const {
  launch.values.assign(sources_.size(), nullptr);
  launch.is_owned.assign(sources_.size(), 0);
  const uint64_t epoch = new_epoch();
  std::lock_guard<SpinLock> lock(device_state(device_).mutex);
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (sources_[i].place.kind != Kind::kConstant) {
      if (auto reason = gather_source(launch, i, epoch)) {
        return reason;
      }
    }
  }
  return std::nullopt;
}

std::optional<std::string> ReplayProgram::check_targets(const Launch& launch) const {
  for (const Target& target : targets_) {
    if (target.overwrites) {
      continue;  // compared as a source
    }
    for (const Place& place : target.places) {
      if (place.kind == Kind::kResult || place.kind == Kind::kNewGradient) {
        continue;
      }
      const at::Tensor& t = tensor_at(place, launch.arguments);
      const XlaTensor* x = maybe_xla(t);
      const Shape& shape = target.spec->outs[0];
      if (x == nullptr || x->is_view() || x->device_index() != device_ || t.scalar_type() != shape.dtype ||
          t.sizes() != at::IntArrayRef(shape.sizes)) {
        return "the device, shape or dtype of a tensor that is written to";
      }
    }
  }
  return std::nullopt;
}

// Makes the values available in the form that the program takes. Returns whether it ran Python.
bool ReplayProgram::convert_inputs(Launch& launch) const {
  if (launch.is_bucketed) {
    return bucketed_->fill_buckets(launch.values, launch.buckets);
  }
  bool ran = false;
  for (const NodePtr& value : launch.values) {
    if (value && value->buffer->bucket() != nullptr) {
      value->buffer->array();
      ran = true;
    }
  }
  return ran;
}

// Collects and checks the values until no Python has run since.
std::optional<std::string> ReplayProgram::prepare(Launch& launch) const {
  do {
    if (auto reason = gather(launch)) {
      return reason;
    }
    if (auto reason = check_targets(launch)) {
      return reason;
    }
  } while (convert_inputs(launch));
  return std::nullopt;
}

void ReplayProgram::add_arrays(const Launch& launch, py::list& inputs) const {
  py::list arrays;
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (!launch.is_bucketed || !bucketed_->has_source(i)) {
      arrays.append(py::handle(launch.values[i] ? launch.values[i]->buffer->storage() : sources_[i].array.ptr()));
    }
  }
  if (launch.is_bucketed) {
    for (const BucketedProgram::Group& group : bucketed_->groups()) {
      if (!group.sources.empty()) {
        arrays.append(py::handle(launch.values[group.sources[0]]->buffer->storage()));
      }
    }
  }
  inputs.attr("extend")(place_.is_none() ? arrays : py::list(place_(arrays)));
}

py::object ReplayProgram::launch(const std::vector<at::Tensor>& arguments,
                                 const std::vector<std::pair<size_t, double>>& numbers) {
  if (!have_one_seed(device_, draws_)) {
    return py::str("the random number state, which wraps around in this step");
  }
  if (bucketed_ && !bucketed_->is_profitable()) {
    bucketed_.reset();
  }
  Launch launch{arguments};
  launch.results.resize(results_);
  launch.is_bucketed = bucketed_.has_value();
  for (const auto& [position, number] : numbers) {
    floats_[position] = number;
  }
  const auto seed = static_cast<int64_t>(get_seed(device_));
  for (const size_t position : seeds_) {
    ints_[position] = seed;
  }
  const auto& executable = launch.is_bucketed ? bucketed_->executable() : executable_.cast<const Executable&>();
  py::list inputs;
  append_number_arrays(inputs, executable, floats_, ints_);
  // From here on this thread keeps the GIL until the program has started, but for what prepare() repeats.
  if (auto reason = prepare(launch)) {
    return py::str(*reason);
  }
  add_arrays(launch, inputs);
  launch.provenance = take_provenance();
  if (launch.is_bucketed) {
    bucketed_->add_inputs(launch.buckets, launch.values);
  }
  const py::tuple started = start(executable, inputs);
  // From here on nothing may throw: the donated values are gone.
  inputs = py::list();
  static const CounterPointer executions("ExecuteComputation");
  executions->add();
  add_workspace_peak(device_, executable.extra);
  assign(launch, started[0]);
  launch.buckets.drop_taken();
  counts_.add_steps();
  skip_draws(device_, draws_);
  return py::make_tuple(launch.results, started[0], started[1]);
}

void ReplayProgram::donate_sources(Launch& launch) const {
  const auto& executable = executable_.cast<const Executable&>();
  launch.is_renewed.resize(sources_.size());
  for (size_t i = 0; i < targets_.size(); ++i) {
    const Target& target = targets_[i];
    if (!target.overwrites || !launch.is_owned[*target.overwrites]) {
      continue;
    }
    const Buffer& before = *launch.values[*target.overwrites]->buffer;
    if (before.bytes == executable.sizes[i] && before.sharding == sharding_of(executable, i)) {
      launch.is_renewed[*target.overwrites] = 1;
    }
  }
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (sources_[i].donated && !launch.is_renewed[i]) {
      launch.values[i]->buffer->donate();
      launch.values[i].reset();
    }
  }
}

void ReplayProgram::assign(Launch& launch, const py::list& arrays) const {
  const auto& executable = executable_.cast<const Executable&>();
  donate_sources(launch);
  size_t next = 0;
  for (size_t i = 0; i < targets_.size(); ++i) {
    if (launch.is_bucketed && bucketed_->has_target(i)) {
      continue;
    }
    const Target& target = targets_[i];
    auto array = py::reinterpret_borrow<py::object>(PyList_GET_ITEM(arrays.ptr(), static_cast<Py_ssize_t>(next++)));
    if (target.overwrites && launch.is_renewed[*target.overwrites]) {
      launch.values[*target.overwrites]->buffer->renew(array.release().ptr(), launch.provenance);
      note_renewed(i, launch);
      continue;
    }
    BufferPtr buffer =
        make_buffer(std::move(array), device_, executable.sizes[i], launch.provenance, sharding_of(executable, i));
    const NodePtr value = make_leaf(std::move(buffer), target.spec, device_);
    for (const Place& place : target.places) {
      assign_place(place, value, launch);
    }
  }
  if (launch.is_bucketed) {
    for (const BucketedProgram::Group& group : bucketed_->groups()) {
      auto array = py::reinterpret_borrow<py::object>(PyList_GET_ITEM(arrays.ptr(), static_cast<Py_ssize_t>(next++)));
      assign_bucket(group, std::move(array), launch);
    }
  }
  for (const at::Tensor& t : cleared_) {
    t.mutable_grad() = at::Tensor();
  }
}

void ReplayProgram::note_renewed(size_t i, Launch& launch) const {
  launch.values[*targets_[i].overwrites]->origin = current_origin();
  tensor_at(targets_[i].places[0], launch.arguments).unsafeGetTensorImpl()->bump_version();
}

// The bucket of the last launch is filled again if all its buffers remain.
void ReplayProgram::assign_bucket(const BucketedProgram::Group& group, py::object array, Launch& launch) const {
  const auto& executable = executable_.cast<const Executable&>();
  BucketPtr bucket;
  if (!group.sources.empty() &&
      std::all_of(group.sources.begin(), group.sources.end(), [&](size_t i) { return launch.is_renewed[i]; }) &&
      BucketedProgram::is_filled(group, launch.values)) {
    bucket = BucketPtr::reclaim_copy(launch.values[group.sources[0]]->buffer->bucket());
    bucket->fill(std::move(array));
  } else {
    bucket = c10::make_intrusive<Bucket>(std::move(array), group.layout, group.targets.size());
    launch.buckets.add(bucket);
  }
  for (size_t slot = 0; slot < group.targets.size(); ++slot) {
    const size_t i = group.targets[slot];
    const Target& target = targets_[i];
    if (target.overwrites && launch.is_renewed[*target.overwrites]) {
      launch.values[*target.overwrites]->buffer->renew(bucket, slot, launch.provenance);
      note_renewed(i, launch);
      continue;
    }
    auto buffer = c10::make_intrusive<Buffer>(bucket, slot, device_, executable.sizes[i], launch.provenance);
    const NodePtr value = make_leaf(std::move(buffer), target.spec, device_);
    for (const Place& place : target.places) {
      assign_place(place, value, launch);
    }
  }
}

void ReplayProgram::assign_place(const Place& place, const NodePtr& value, Launch& launch) const {
  if (place.kind == Kind::kNewGradient) {
    place.tensor.mutable_grad() = make_tensor(value);
  } else if (place.kind == Kind::kResult) {
    launch.results[place.index] = make_tensor(value);
  } else {
    const at::Tensor& t = tensor_at(place, launch.arguments);
    maybe_xla(t)->write(value);
    t.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace torch_xla
