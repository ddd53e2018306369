#include "graph/replay_program.h"

#include <pybind11/stl.h>

#include <algorithm>

#include "compat/python_internal.h"
#include "compat/torch_internal.h"
#include "graph/post_order.h"
#include "runtime/device.h"

namespace py = pybind11;
namespace torch_xla {

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

const at::Tensor& ReplayProgram::tensor_at(const Place& place, const std::vector<at::Tensor>& arguments) {
  switch (place.kind) {
    case Kind::kArgument:
      return arguments[place.index];
    case Kind::kGradient:
      return place.tensor.unsafeGetTensorImpl()->grad();
    default:
      return place.tensor;
  }
}

ReplayProgram::ReplayProgram(const Graph& graph, py::object executable, py::object place, const py::list& sources,
                             const py::list& targets, std::vector<at::Tensor> cleared, const py::list& watched,
                             std::vector<at::Tensor> arguments, std::vector<size_t> seeds, uint32_t draws)
    : device_(graph.device),
      executable_(std::move(executable)),
      place_(std::move(place)),
      cleared_(std::move(cleared)),
      floats_(graph.floats),
      ints_(graph.ints),
      seeds_(std::move(seeds)),
      draws_(draws) {
  TORCH_INTERNAL_ASSERT(sources.size() == graph.leaves.size() && targets.size() == graph.roots.size());
  add_sources(graph, sources);
  add_targets(graph, targets);
  mark_overwritten();
  for (const py::handle& item : watched) {
    const auto tensor = item[py::int_(0)].cast<at::Tensor>();
    const bool hooks = compat::has_hooks(tensor);
    watched_.push_back({tensor, tensor.requires_grad(), item[py::int_(1)].cast<bool>(), hooks});
  }
  for (const at::Tensor& t : arguments) {
    const uint64_t layout = layout_hash(*maybe_xla(t)->value());
    arguments_.push_back({t.scalar_type(), t.sizes().vec(), layout, bound_.count(t.unsafeGetTensorImpl()) > 0});
  }
}

void ReplayProgram::add_sources(const Graph& graph, const py::list& sources) {
  for (size_t i = 0; i < sources.size(); ++i) {
    Source source;
    if (sources[i][py::int_(0)].cast<std::string>() == "constant") {
      source.place.kind = Kind::kConstant;
      source.array = sources[i][py::int_(1)];
    } else {
      source.place = parse_place(sources[i]);
    }
    if (source.place.kind == Kind::kTensor) {
      bound_.insert(source.place.tensor.unsafeGetTensorImpl());
    }
    source.layout = layout_hash(*graph.leaves[i]);
    sources_.push_back(std::move(source));
  }
  for (const uint32_t position : graph.donated) {
    sources_[position].donated = true;
  }
}

void ReplayProgram::add_targets(const Graph& graph, const py::list& targets) {
  for (size_t i = 0; i < targets.size(); ++i) {
    Target target;
    for (const py::handle& described : targets[i]) {
      target.places.push_back(parse_place(described));
      const Place& place = target.places.back();
      if (place.kind == Kind::kResult) {
        results_ = std::max(results_, place.index + 1);
      } else if (place.kind == Kind::kTensor) {
        bound_.insert(place.tensor.unsafeGetTensorImpl());
      }
    }
    const Shape& shape = graph.roots[i]->shape();
    target.spec = make_output_spec(shape.dtype, shape.sizes);
    targets_.push_back(std::move(target));
  }
}

void ReplayProgram::mark_overwritten() {
  const auto is_place = [](const Place& a, const Place& b) {
    return a.kind == b.kind && (a.kind == Kind::kArgument ? a.index == b.index : a.tensor.is_same(b.tensor));
  };
  for (size_t i = 0; i < sources_.size(); ++i) {
    Source& source = sources_[i];
    source.dies = source.place.kind == Kind::kGradient && source.donated;
    if (source.place.kind == Kind::kConstant) {
      continue;
    }
    for (Target& target : targets_) {
      for (const Place& place : target.places) {
        if (is_place(place, source.place)) {
          source.dies = false;
          if (source.donated && target.places.size() == 1) {
            target.overwrites = i;
          }
        }
      }
    }
  }
}

std::vector<std::pair<std::optional<size_t>, size_t>> ReplayProgram::bucket_candidates() const {
  std::vector<std::pair<std::optional<size_t>, size_t>> found;
  for (size_t i = 0; i < targets_.size(); ++i) {
    const Target& target = targets_[i];
    if (target.places.size() != 1) {
      continue;
    }
    const Kind kind = target.places[0].kind;
    const bool is_gradient = kind == Kind::kGradient || kind == Kind::kNewGradient;
    if (target.overwrites ? is_gradient || kind == Kind::kTensor : is_gradient) {
      found.emplace_back(target.overwrites, i);
    }
  }
  return found;
}

void ReplayProgram::use_buckets(py::object executable, const py::list& groups) {
  bucketed_.emplace(std::move(executable), groups, sources_.size(), targets_.size());
}

std::optional<std::string> ReplayProgram::check_argument(const std::vector<at::Tensor>& arguments, size_t i) const {
  const at::Tensor& t = arguments[i];
  const ArgumentSpec& spec = arguments_[i];
  const std::string which = "tensor argument " + std::to_string(i);
  XlaTensor* x = maybe_xla(t);
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
  return std::nullopt;
}

std::optional<std::string> ReplayProgram::check(const std::vector<at::Tensor>& arguments) const {
  if (arguments.size() != arguments_.size()) {
    return "the number of tensors among the arguments";
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (auto reason = check_argument(arguments, i)) {
      return reason;
    }
  }
  for (const Watched& watched : watched_) {
    const at::Tensor& t = watched.tensor;
    if (t.requires_grad() != watched.requires_grad) {
      return "requires_grad of a tensor";
    }
    if (t.unsafeGetTensorImpl()->grad().defined() != watched.has_gradient) {
      return "a gradient that is None, or no longer None";
    }
    if (compat::has_hooks(t) != watched.has_hooks) {
      return "a hook of a tensor";
    }
  }
  return std::nullopt;
}

void bind_replay(py::module_& m) {
  py::class_<ReplayProgram>(m, "ReplayProgram")
      .def(py::init<const Graph&, py::object, py::object, const py::list&, const py::list&, std::vector<at::Tensor>,
                    const py::list&, std::vector<at::Tensor>, std::vector<size_t>, uint32_t>(),
           py::kw_only(), py::arg("graph"), py::arg("executable"), py::arg("place"), py::arg("sources"),
           py::arg("targets"), py::arg("cleared"), py::arg("watched"), py::arg("arguments"), py::arg("seeds"),
           py::arg("draws"))
      .def(
          "set_counts",
          [](ReplayProgram& program, std::vector<at::Tensor> tensors, std::vector<double> steps,
             std::vector<uint32_t> groups) {
            program.counts().set(std::move(tensors), std::move(steps), std::move(groups));
          },
          py::arg("tensors"), py::arg("steps"), py::arg("groups"))
      .def("use_buckets", &ReplayProgram::use_buckets, py::arg("executable"), py::arg("groups"))
      .def("bucket_candidates", &ReplayProgram::bucket_candidates)
      .def("group_values", [](ReplayProgram& program) { return program.counts().group_values(); })
      .def("check", &ReplayProgram::check, py::arg("arguments"))
      .def("launch", &ReplayProgram::launch, py::arg("arguments"), py::arg("numbers"));
}

}  // namespace torch_xla
