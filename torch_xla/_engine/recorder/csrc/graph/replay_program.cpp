#include "graph/replay_program.h"

#include <pybind11/stl.h>

#include <algorithm>

#include "compat/python_internal.h"
#include "compat/torch_internal.h"
#include "graph/post_order.h"
#include "ir/rng_state.h"
#include "runtime/device.h"
#include "runtime/memory_stats.h"
#include "runtime/python_hooks.h"
#include "support/counters.h"
#include "tensor/xla_tensor.h"

namespace py = pybind11;
namespace torch_xla {
namespace {

const at::Tensor& gradient_of(const at::Tensor& t) { return t.unsafeGetTensorImpl()->grad(); }

double read_scalar(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kFloat:
      return *t.const_data_ptr<float>();
    case at::kDouble:
      return *t.const_data_ptr<double>();
    default:
      return static_cast<double>(*t.const_data_ptr<int64_t>());
  }
}

void write_scalar(const at::Tensor& t, double value) {
  switch (t.scalar_type()) {
    case at::kFloat:
      *t.mutable_data_ptr<float>() = static_cast<float>(value);
      break;
    case at::kDouble:
      *t.mutable_data_ptr<double>() = value;
      break;
    default:
      *t.mutable_data_ptr<int64_t>() = static_cast<int64_t>(value);
  }
  t.unsafeGetTensorImpl()->bump_version();
}

}  // namespace

ReplayProgram::Place ReplayProgram::parse_place(const py::handle& described) {
  const auto kind = described[py::int_(0)].cast<std::string>();
  const py::object where = described[py::int_(1)];
  if (kind == "argument") {
    return {Kind::kArgument, where.cast<size_t>(), {}};
  }
  if (kind == "result") {
    return {Kind::kResult, where.cast<size_t>(), {}};
  }
  const Kind of_tensor = kind == "gradient"       ? Kind::kGradient
                         : kind == "new gradient" ? Kind::kNewGradient
                                                  : Kind::kTensor;
  TORCH_INTERNAL_ASSERT(of_tensor != Kind::kTensor || kind == "tensor", "a place of kind ", kind);
  return {of_tensor, 0, where.cast<at::Tensor>()};
}

ReplayProgram::ReplayProgram(const Graph& graph, py::object executable, const py::list& sources,
                             const py::list& targets, std::vector<at::Tensor> cleared, const py::list& watched,
                             std::vector<at::Tensor> arguments, std::vector<size_t> seeds, uint32_t draws)
    : device_(graph.device),
      executable_(std::move(executable)),
      cleared_(std::move(cleared)),
      floats_(graph.floats),
      ints_(graph.ints),
      seeds_(std::move(seeds)),
      draws_(draws) {
  TORCH_INTERNAL_ASSERT(sources.size() == graph.leaves.size() && targets.size() == graph.roots.size());
  for (size_t i = 0; i < sources.size(); ++i) {
    Source source;
    if (sources[i][py::int_(0)].cast<std::string>() == "constant") {
      source.place.kind = Kind::kConstant;
      source.array = sources[i][py::int_(1)];
    } else {
      source.place = parse_place(sources[i]);
    }
    source.layout = layout_hash(*graph.leaves[i]);
    sources_.push_back(std::move(source));
  }
  for (const uint32_t position : graph.donated) {
    sources_[position].donated = true;
  }
  for (size_t i = 0; i < targets.size(); ++i) {
    std::vector<Place> places;
    for (const py::handle& described : targets[i]) {
      places.push_back(parse_place(described));
      if (places.back().kind == Kind::kResult) {
        results_ = std::max(results_, places.back().index + 1);
      }
    }
    targets_.push_back(std::move(places));
    const Shape& shape = graph.roots[i]->shape();
    root_specs_.push_back(make_output_spec(shape.dtype, shape.sizes));
  }
  for (Source& source : sources_) {
    const auto is_written = [&source](const Place& place) {
      return place.kind == Kind::kGradient && place.tensor.is_same(source.place.tensor);
    };
    source.dies = source.place.kind == Kind::kGradient && source.donated &&
                  std::none_of(targets_.begin(), targets_.end(), [&](const std::vector<Place>& places) {
                    return std::any_of(places.begin(), places.end(), is_written);
                  });
  }
  for (const py::handle& item : watched) {
    const auto tensor = item[py::int_(0)].cast<at::Tensor>();
    const bool hooks = compat::has_hooks(tensor);
    watched_.push_back({tensor, tensor.requires_grad(), item[py::int_(1)].cast<bool>(), hooks});
  }
  const auto bind = [this](const Place& place) {
    if (place.kind == Kind::kTensor) {
      bound_.insert(place.tensor.unsafeGetTensorImpl());
    }
  };
  for (const Source& source : sources_) {
    bind(source.place);
  }
  for (const auto& places : targets_) {
    std::for_each(places.begin(), places.end(), bind);
  }
  for (const at::Tensor& t : arguments) {
    const uint64_t layout = layout_hash(*maybe_xla(t)->value());
    arguments_.push_back({t.scalar_type(), t.sizes().vec(), layout, bound_.count(t.unsafeGetTensorImpl()) > 0});
  }
}

void ReplayProgram::set_counts(std::vector<at::Tensor> tensors, std::vector<double> steps,
                               std::vector<uint32_t> groups) {
  counts_.clear();
  for (size_t i = 0; i < tensors.size(); ++i) {
    counts_.push_back({std::move(tensors[i]), steps[i], groups[i]});
  }
}

std::optional<std::vector<double>> ReplayProgram::group_values() const {
  std::vector<double> values;
  std::vector<bool> known;
  for (const Count& count : counts_) {
    const double value = read_scalar(count.tensor);
    if (count.group >= values.size()) {
      values.resize(count.group + 1);
      known.resize(count.group + 1);
    }
    if (known[count.group] && values[count.group] != value) {
      return std::nullopt;
    }
    values[count.group] = value;
    known[count.group] = true;
  }
  return values;
}

std::optional<std::string> ReplayProgram::check(const std::vector<at::Tensor>& arguments) const {
  if (arguments.size() != arguments_.size()) {
    return "the number of tensors among the arguments";
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    const at::Tensor& t = arguments[i];
    const ArgumentSpec& spec = arguments_[i];
    XlaTensor* x = maybe_xla(t);
    const std::string which = "tensor argument " + std::to_string(i);
    if (x == nullptr || x->device_index() != device_) {
      return "the device of " + which;
    }
    if (t.scalar_type() != spec.dtype || t.sizes() != at::IntArrayRef(spec.sizes)) {
      return "the shape or dtype of " + which;
    }
    if (t.requires_grad() || compat::isFwGradDefined(t)) {
      return "requires_grad of " + which;
    }
    if ((bound_.count(t.unsafeGetTensorImpl()) > 0) != spec.is_bound) {
      return which + ", which the function also uses by another name";
    }
    for (size_t j = 0; j < i; ++j) {
      if (maybe_xla(arguments[j])->shares_memory_with(*x)) {
        return which + ", which shares memory with another argument";
      }
    }
  }
  for (const Watched& watched : watched_) {
    const at::Tensor& t = watched.tensor;
    if (t.requires_grad() != watched.requires_grad) {
      return "requires_grad of a tensor";
    }
    if (gradient_of(t).defined() != watched.has_gradient) {
      return "a gradient that is None, or no longer None";
    }
    if (compat::has_hooks(t) != watched.has_hooks) {
      return "a hook of a tensor";
    }
  }
  return std::nullopt;
}

std::optional<std::string> ReplayProgram::gather(const std::vector<at::Tensor>& arguments,
                                                 std::vector<NodePtr>& values) const {
  const uint64_t epoch = new_epoch();
  for (const Source& source : sources_) {
    if (source.place.kind == Kind::kConstant) {
      values.emplace_back();
      continue;
    }
    const at::Tensor& t = source.place.kind == Kind::kArgument   ? arguments[source.place.index]
                          : source.place.kind == Kind::kGradient ? gradient_of(source.place.tensor)
                                                                 : source.place.tensor;
    XlaTensor* x = t.defined() ? maybe_xla(t) : nullptr;
    if (x == nullptr) {
      return "a tensor that is no longer on the device";
    }
    NodePtr value = x->value();
    if (value->pending() || !value->buffer || x->is_view()) {
      return "a tensor that is a view, or could not be computed";
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
    if (source.donated && !x->owns_alone(value)) {
      return "a tensor whose value another tensor shares, such as one that state_dict() returned";
    }
    values.push_back(std::move(value));
  }
  return check_targets(arguments);
}

std::optional<std::string> ReplayProgram::check_targets(const std::vector<at::Tensor>& arguments) const {
  for (size_t i = 0; i < targets_.size(); ++i) {
    for (const Place& place : targets_[i]) {
      if (place.kind == Kind::kResult || place.kind == Kind::kNewGradient) {
        continue;
      }
      const at::Tensor& t = place.kind == Kind::kArgument   ? arguments[place.index]
                            : place.kind == Kind::kGradient ? gradient_of(place.tensor)
                                                            : place.tensor;
      const XlaTensor* x = t.defined() ? maybe_xla(t) : nullptr;
      const Shape& shape = root_specs_[i]->outs[0];
      if (x == nullptr || x->is_view() || x->device_index() != device_ || t.scalar_type() != shape.dtype ||
          t.sizes() != at::IntArrayRef(shape.sizes)) {
        return "the device, shape or dtype of a tensor that is written to";
      }
    }
  }
  return std::nullopt;
}

py::object ReplayProgram::launch(const std::vector<at::Tensor>& arguments,
                                 const std::vector<std::pair<size_t, double>>& numbers) {
  const auto& executable = executable_.cast<const Executable&>();
  if (!have_one_seed(device_, draws_)) {
    return py::str("the random number state, which wraps around in this step");
  }
  std::vector<NodePtr> values;
  values.reserve(sources_.size());
  if (auto reason = gather(arguments, values)) {
    return py::str(*reason);
  }
  for (const auto& [position, number] : numbers) {
    floats_[position] = number;
  }
  const auto seed = static_cast<int64_t>(get_seed(device_));
  for (const size_t position : seeds_) {
    ints_[position] = seed;
  }
  py::list arrays;
  append_number_arrays(arrays, executable, floats_, ints_);
  for (size_t i = 0; i < sources_.size(); ++i) {
    arrays.append(values[i] ? borrow(values[i]->buffer) : sources_[i].array);
  }
  std::vector<at::Tensor> results(results_);
  const uint32_t provenance = take_provenance();
  const py::tuple started = start(executable, arrays);
  // From here on nothing may throw: the donated values are gone.
  static Counter* executions = counter("ExecuteComputation");
  executions->add();
  add_workspace_peak(device_, executable.extra);
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (sources_[i].donated) {
      values[i]->buffer->donate();
    }
  }
  values.clear();
  assign(arguments, py::sequence(started[0]), results, provenance);
  add_counts();
  skip_draws(device_, draws_);
  return py::make_tuple(results, started[0], started[1]);
}

void ReplayProgram::assign(const std::vector<at::Tensor>& arguments, const py::sequence& arrays,
                           std::vector<at::Tensor>& results, uint32_t provenance) {
  const auto& executable = executable_.cast<const Executable&>();
  for (size_t i = 0; i < targets_.size(); ++i) {
    BufferPtr buffer =
        make_buffer(py::reinterpret_borrow<py::object>(arrays[i]), device_, executable.sizes[i], provenance, 0);
    const NodePtr value = make_leaf(std::move(buffer), root_specs_[i], device_);
    for (const Place& place : targets_[i]) {
      assign_place(place, value, arguments, results);
    }
  }
  for (const at::Tensor& t : cleared_) {
    t.mutable_grad() = at::Tensor();
  }
}

void ReplayProgram::assign_place(const Place& place, const NodePtr& value, const std::vector<at::Tensor>& arguments,
                                 std::vector<at::Tensor>& results) {
  const auto write = [&value](const at::Tensor& t) {
    maybe_xla(t)->write(value);
    t.unsafeGetTensorImpl()->bump_version();
  };
  switch (place.kind) {
    case Kind::kArgument:
      write(arguments[place.index]);
      break;
    case Kind::kGradient:
      write(gradient_of(place.tensor));
      break;
    case Kind::kNewGradient:
      place.tensor.mutable_grad() = make_tensor(value);
      break;
    case Kind::kResult:
      results[place.index] = make_tensor(value);
      break;
    default:
      write(place.tensor);
  }
}

void ReplayProgram::add_counts() {
  for (const Count& count : counts_) {
    write_scalar(count.tensor, read_scalar(count.tensor) + count.step);
  }
}

void bind_replay(py::module_& m) {
  py::class_<ReplayProgram>(m, "ReplayProgram")
      .def(py::init<const Graph&, py::object, const py::list&, const py::list&, std::vector<at::Tensor>,
                    const py::list&, std::vector<at::Tensor>, std::vector<size_t>, uint32_t>(),
           py::kw_only(), py::arg("graph"), py::arg("executable"), py::arg("sources"), py::arg("targets"),
           py::arg("cleared"), py::arg("watched"), py::arg("arguments"), py::arg("seeds"), py::arg("draws"))
      .def("set_counts", &ReplayProgram::set_counts, py::arg("tensors"), py::arg("steps"), py::arg("groups"))
      .def("group_values", &ReplayProgram::group_values)
      .def("check", &ReplayProgram::check, py::arg("arguments"))
      .def("launch", &ReplayProgram::launch, py::arg("arguments"), py::arg("numbers"));
}

}  // namespace torch_xla
