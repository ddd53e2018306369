#include "graph/state_snapshot.h"

#include <pybind11/stl.h>

#include <unordered_set>

#include "compat/python_internal.h"
#include "graph/post_order.h"
#include "ir/op.h"
#include "runtime/ordinal.h"
#include "tensor/live_tensors.h"

namespace py = pybind11;
namespace torch_xla {
namespace {

using Places = std::vector<py::object>;  // of one value

// Returns the gradient of a tensor as xla tensor; null if it has none.
XlaTensor* xla_gradient(const at::Tensor& t) {
  const at::Tensor& gradient = t.unsafeGetTensorImpl()->grad();
  return gradient.defined() ? maybe_xla(gradient) : nullptr;
}

py::object place(const char* kind, const at::Tensor& t) { return py::make_tuple(kind, t); }

py::object sizes_of(const Node& value) {
  return py::cast(std::vector<int64_t>(value.shape().sizes.begin(), value.shape().sizes.end()));
}

void describe_numbers(const Graph& graph, py::dict& out) {
  std::vector<double> floats;
  std::vector<int64_t> ints;
  std::vector<uint32_t> origins;
  std::vector<size_t> seeds;
  for (const Node* node : graph.nodes) {
    if (node->op == seed_op()) {
      seeds.push_back(ints.size());
    }
    append_numbers(*node, floats, ints);
    origins.resize(floats.size(), node->origin);
  }
  out["floats"] = graph.floats;
  out["ints"] = graph.ints;
  out["origins"] = origins;
  out["seeds"] = seeds;
}

}  // namespace

StateSnapshot::StateSnapshot(int8_t device, std::vector<at::Tensor> known) : device_(device), known_(std::move(known)) {
  for (const LiveTensor& t : list_live_tensors(device)) {
    entries_.emplace(t.serial, Entry{c10::weak_intrusive_ptr<Node>(t.value), t.is_view});
  }
  for (const at::Tensor& t : known_) {
    const XlaTensor* gradient = xla_gradient(t);
    gradients_.push_back(gradient != nullptr ? std::optional<uint64_t>(gradient->serial()) : std::nullopt);
  }
}

// Reads the tensors after the step.
class StateSnapshot::Reader {
 public:
  Reader(const StateSnapshot& snapshot, const Graph& graph, const std::vector<at::Tensor>& arguments,
         const std::vector<at::Tensor>& results)
      : entries_(snapshot.entries_), sources_(graph.leaves.size()), targets_(graph.roots.size()) {
    for (size_t i = 0; i < graph.leaves.size(); ++i) {
      leaves_.emplace(graph.leaves[i], i);
    }
    for (size_t i = 0; i < graph.roots.size(); ++i) {
      roots_.emplace(graph.roots[i].get(), i);
    }
    add_arguments(arguments);
    for (size_t i = 0; i < snapshot.known_.size(); ++i) {
      add_gradient(snapshot.known_[i], snapshot.gradients_[i]);
    }
    for (const at::Tensor& t : snapshot.known_) {
      add_old(t, place("tensor", t));
    }
    for (size_t i = 0; i < results.size(); ++i) {
      add_new(*maybe_xla(results[i]), py::make_tuple("result", i));
    }
    add_unknown(list_live_tensors(snapshot.device_));
  }

  void write(py::dict& out) {
    const auto lists = [](const std::vector<Places>& all) {
      py::list list;
      for (const Places& places : all) {
        list.append(py::cast(places));
      }
      return list;
    };
    out["leaves"] = lists(sources_);
    out["targets"] = lists(targets_);
    out["cleared"] = cleared_;
    out["assigned"] = assigned_;
    out["watched"] = watched_;
  }

 private:
  const Entry* entry_of(const XlaTensor& x) const {
    const auto found = entries_.find(x.serial());
    return found == entries_.end() ? nullptr : &found->second;
  }

  const Entry* entry_of(uint64_t serial) const {
    const auto found = entries_.find(serial);
    return found == entries_.end() ? nullptr : &found->second;
  }

  // Notes a place of a value before the step.
  void add_source(const Entry& before, const py::object& where) {
    const auto found = leaves_.find(before.value._unsafe_get_target());
    if (!before.is_view && found != leaves_.end()) {
      sources_[found->second].push_back(where);
    }
  }

  // Notes a place of a value after the step.
  void add_target(const NodePtr& value, const py::object& where) {
    const auto found = roots_.find(value.get());
    if (found != roots_.end()) {
      targets_[found->second].push_back(where);
    } else {
      assigned_.append(where);
    }
  }

  // Notes what the step reads and writes of a tensor that existed before it, once per memory.
  void add_old(const at::Tensor& t, const py::object& where) {
    XlaTensor* x = maybe_xla(t);
    const Entry* before = x != nullptr ? entry_of(x->serial()) : nullptr;
    if (before == nullptr || before->is_view || x->is_view() || !placed_.insert(x->memory()).second) {
      return;
    }
    add_source(*before, where);
    if (const NodePtr value = x->value(); value.get() != before->value._unsafe_get_target()) {
      add_target(value, where);
    }
  }

  void add_new(XlaTensor& x, const py::object& where) {
    if (entry_of(x.serial()) == nullptr && !x.is_view() && placed_.insert(x.memory()).second) {
      add_target(x.value(), where);
    }
  }

  void add_arguments(const std::vector<at::Tensor>& arguments) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      add_old(arguments[i], py::make_tuple("argument", i));
    }
  }

  void add_gradient(const at::Tensor& t, const std::optional<uint64_t>& before) {
    watched_.append(py::make_tuple(t, before.has_value()));
    XlaTensor* gradient = xla_gradient(t);
    if (before && gradient != nullptr && gradient->serial() == *before) {
      add_old(t.unsafeGetTensorImpl()->grad(), place("gradient", t));
      return;
    }
    if (const Entry* old = before ? entry_of(*before) : nullptr) {
      add_source(*old, place("gradient", t));
    }
    if (gradient != nullptr) {
      add_new(*gradient, place("new gradient", t));
    } else if (before) {
      cleared_.push_back(t);
    }
  }

  // Notes the tensors that nothing else has placed; a value that other threads have made is neither leaf nor root.
  void add_unknown(const std::vector<LiveTensor>& live) {
    for (const LiveTensor& t : live) {
      if (t.is_view || placed_.count(t.memory) > 0) {
        continue;
      }
      const Entry* before = entry_of(t.serial);
      const bool is_root = roots_.count(t.value.get()) > 0;
      if (before == nullptr) {
        if (is_root && placed_.insert(t.memory).second) {
          add_target(t.value, py::make_tuple("new", sizes_of(*t.value)));
        }
        continue;
      }
      const auto where = [&t] { return py::make_tuple("unknown", sizes_of(*t.value)); };
      const Node* old = before->value._unsafe_get_target();
      const bool is_leaf = !before->is_view && leaves_.count(old) > 0;
      if ((is_leaf || t.value.get() != old) && placed_.insert(t.memory).second) {
        if (is_leaf) {
          add_source(*before, where());
        }
        if (t.value.get() != old) {
          add_target(t.value, where());
        }
      }
    }
  }

  const std::unordered_map<uint64_t, Entry>& entries_;
  std::unordered_map<const Node*, size_t> leaves_;
  std::unordered_map<const Node*, size_t> roots_;
  std::unordered_set<uint64_t> placed_;  // the memory of the tensors that have been noted
  std::vector<Places> sources_;
  std::vector<Places> targets_;
  std::vector<at::Tensor> cleared_;
  py::list assigned_;
  py::list watched_;
};

py::dict StateSnapshot::describe(const Graph& graph, const std::vector<at::Tensor>& arguments,
                                 const std::vector<at::Tensor>& results) const {
  py::dict out;
  Reader(*this, graph, arguments, results).write(out);
  describe_numbers(graph, out);
  out["donated"] = graph.donated;
  return out;
}

void bind_state_snapshot(py::module_& m) {
  py::class_<StateSnapshot>(m, "StateSnapshot")
      .def(py::init(
               [](Ordinal device, std::vector<at::Tensor> known) { return StateSnapshot(device, std::move(known)); }),
           py::arg("device"), py::arg("known"))
      .def("describe", &StateSnapshot::describe, py::arg("graph"), py::arg("arguments"), py::arg("results"));
}

}  // namespace torch_xla
