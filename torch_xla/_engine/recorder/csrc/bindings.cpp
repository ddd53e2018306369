// Python bindings: the recorder as a pybind11 module.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <unordered_set>

#include "compat/python_internal.h"
#include "dispatch/graph_size_limit.h"
#include "dispatch/record.h"
#include "graph/call_plan.h"
#include "graph/graph.h"
#include "graph/launch.h"
#include "graph/object_guards.h"
#include "graph/replay_program.h"
#include "graph/serialize.h"
#include "graph/state_snapshot.h"
#include "graph/sync_reason.h"
#include "inference/output_spec_cache.h"
#include "interpreter/graph_interpreter.h"
#include "ir/op.h"
#include "ir/rng_state.h"
#include "ir/sharding.h"
#include "ir/source_location.h"
#include "registration.h"
#include "runtime/device.h"
#include "runtime/host_tensor.h"
#include "runtime/memory_stats.h"
#include "runtime/ordinal.h"
#include "runtime/pending_sharding.h"
#include "runtime/profiler.h"
#include "runtime/python_hooks.h"
#include "support/counters.h"
#include "tensor/live_tensors.h"
#include "tensor/xla_tensor.h"

namespace py = pybind11;
namespace torch_xla {
namespace {

py::bytes key_bytes(const Key& key) {
  char raw[16];
  std::memcpy(raw, &key.a, 8);
  std::memcpy(raw + 8, &key.b, 8);
  return py::bytes(raw, sizeof(raw));
}

std::vector<uint32_t> root_shardings(const Graph& graph) {
  std::vector<uint32_t> out;
  for (const auto& root : graph.roots) {
    out.push_back(root->sharding.load(std::memory_order_relaxed));
  }
  return out;
}

py::list leaf_buffers(const Graph& graph) {
  py::list out;
  for (const Node* leaf : graph.leaves) {
    out.append(borrow(leaf->buffer));
  }
  return out;
}

std::vector<uint32_t> leaf_provenances(const Graph& graph) {
  std::vector<uint32_t> out;
  for (const Node* leaf : graph.leaves) {
    out.push_back(leaf->buffer->provenance);
  }
  return out;
}

Graph collect(Ordinal device, const std::optional<std::vector<NodePtr>>& wanted) {
  drain_parked_buffers();
  Graph graph = wanted ? collect_values(device, *wanted) : collect_all(device);
  if (!wanted) {
    device_state(device).pending.store(0);
  }
  advance_seed(device);
  return graph;
}

py::object failure_of(const Graph& graph) {
  return graph.failure ? py::reinterpret_borrow<py::object>(graph.failure->error) : py::object(py::none());
}

void fail(Graph& graph, const py::object& error, std::optional<size_t> culprit) {
  graph.fail(c10::make_intrusive<Failure>(error.inc_ref().ptr()), culprit);
}

std::vector<NodePtr> nodes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<NodePtr> out;
  for (const auto& t : tensors) {
    if (XlaTensor* x = maybe_xla(t)) {
      out.push_back(x->value());
    }
  }
  return out;
}

XlaTensor& require_xla(const at::Tensor& t) {
  XlaTensor* x = maybe_xla(t);
  TORCH_CHECK(x != nullptr, "Input tensor is not an XLA tensor: ", t.toString(), " on ", t.device());
  return *x;
}

// Makes an xla tensor from an array.
at::Tensor xla_tensor_from_array(const py::object& array, int dtype, Ordinal device) {
  const auto shape = array.attr("shape").cast<std::vector<int64_t>>();
  return make_tensor(
      make_leaf(make_buffer(array, device), make_output_spec(static_cast<at::ScalarType>(dtype), shape), device));
}

// Reshards a tensor in place; `array`: its already resharded value, whose sharding set_sharding has set.
void reshard_tensor(const at::Tensor& t, uint32_t sharding, const std::optional<py::object>& array) {
  XlaTensor& x = require_xla(t);
  NodePtr value = x.value();
  if (array) {
    const Shape& shape = value->shape();
    x.reshard(
        make_leaf(make_buffer(*array, x.device_index()), make_output_spec(shape.dtype, shape.sizes), x.device_index()));
  } else {
    x.reshard(reshard(value, sharding, current_origin()));
  }
}

at::Tensor resharded(const at::Tensor& t, uint32_t sharding) {
  return make_tensor(reshard(require_xla(t).value(), sharding, current_origin()));
}

void bind_graph(py::module_& m) {
  py::class_<Node, NodePtr>(m, "Node")
      .def_property_readonly("pending", &Node::pending)
      .def_property_readonly("device", [](const Node& n) { return static_cast<int>(n.device); })
      .def_property_readonly("origin", [](const Node& n) { return n.origin; })
      .def_property_readonly("shape",
                             [](const Node& n) {
                               const auto& sizes = n.shape().sizes;
                               return py::tuple(py::cast(std::vector<int64_t>(sizes.begin(), sizes.end())));
                             })
      .def_property_readonly("sharding", [](const Node& n) { return n.sharding.load(std::memory_order_relaxed); })
      .def_property_readonly("buffer",
                             [](const Node& n) { return n.buffer ? borrow(n.buffer) : py::object(py::none()); });
  py::class_<Graph> graph(m, "Graph");
  graph.def_property_readonly("key", [](const Graph& g) { return key_bytes(g.key); })
      .def_property_readonly("device", [](const Graph& g) { return static_cast<int>(g.device); })
      .def_property_readonly("node_count", [](const Graph& g) { return g.nodes.size(); })
      .def_property_readonly("distinct_ops", &distinct_ops)
      .def("has_any_op", &has_any_op, py::arg("names"))
      .def_property_readonly("new_nodes", &new_nodes)
      .def_property_readonly("recomputed_nodes", &recomputed_nodes)
      .def_property_readonly("root_count", [](const Graph& g) { return g.roots.size(); })
      .def_property_readonly("donated", [](const Graph& g) { return g.donated; })
      .def_property_readonly("leaf_shapes", &leaf_shapes)
      .def_property_readonly("leaf_origins",
                             [](const Graph& g) {
                               std::vector<uint32_t> out;
                               for (const Node* leaf : g.leaves) {
                                 out.push_back(leaf->origin);
                               }
                               return out;
                             })
      .def("node_origins",
           [](const Graph& g, const std::vector<size_t>& numbers) {
             std::vector<uint32_t> out;
             for (const size_t number : numbers) {
               out.push_back(g.nodes.at(number)->origin);
             }
             return out;
           })
      .def_property_readonly("leaf_shardings",
                             [](const Graph& g) {
                               std::vector<uint32_t> out;
                               for (const Node* leaf : g.leaves) {
                                 out.push_back(leaf->sharding.load(std::memory_order_relaxed));
                               }
                               return out;
                             })
      .def("inputs", &leaf_buffers)
      .def("input_provenances", &leaf_provenances)
      .def_property_readonly("number_counts",
                             [](const Graph& g) { return py::make_tuple(g.floats.size(), g.ints.size()); })
      .def_property_readonly("failure", [](const Graph& g) { return failure_of(g); })
      .def_property_readonly("blocked_count", [](const Graph& g) { return g.blocked.size(); })
      .def("fail_blocked", &Graph::fail_blocked)
      .def("fail", &fail, py::arg("error"), py::arg("culprit") = py::none())
      .def("floats", [](const Graph& g) { return py::array_t<double>(g.floats.size(), g.floats.data()); })
      .def("ints", [](const Graph& g) { return py::array_t<int64_t>(g.ints.size(), g.ints.data()); })
      .def("serialize", &serialize)
      .def("roots", &root_positions)
      .def_property_readonly("root_shardings", &root_shardings);
  bind_launch(m, graph);
  m.def("collect", &collect, py::arg("device"), py::arg("wanted") = py::none());
  m.def("collect_only", [](Ordinal device, const std::vector<NodePtr>& wanted) {
    drain_parked_buffers();
    return collect_only(device, wanted);
  });
  m.def("nodes_of", &nodes_of);
  m.def("tensor_id", [](const at::Tensor& t) { return require_xla(t).id(); });
  py::class_<ViewChain>(m, "ViewChain")
      .def("__len__", [](const ViewChain& chain) { return chain.ops.size(); })
      .def("replay", [](const ViewChain& chain, const at::Tensor& memory) {
        require_xla(memory);
        return replay(chain, memory);
      });
  m.def("view_chain", [](const at::Tensor& t) { return require_xla(t).view_chain(); });
  m.def("storage_id", [](const at::Tensor& t) { return require_xla(t).storage_id(); });
  m.def("reshard", &reshard_tensor, py::arg("tensor"), py::arg("sharding"), py::arg("array") = py::none());
  m.def("resharded", &resharded);
  m.def("latest_values", [](Ordinal device) -> std::optional<at::Tensor> {
    NodePtr value = XlaTensor::latest_float_value(device);
    return value ? std::optional<at::Tensor>(make_tensor(std::move(value))) : std::nullopt;
  });
  m.def("is_view", [](const at::Tensor& t) { return require_xla(t).is_view(); });
  m.def(
      "set_sharding",
      [](uint32_t sharding, int64_t bytes) {
        prepare_reshard();
        set_sharding(sharding, bytes);
      },
      py::arg("sharding"), py::arg("bytes") = -1);
  m.def("make_tensor", &xla_tensor_from_array, py::arg("array"), py::arg("dtype"), py::arg("device"));
}

// Returns the distinct arrays that have the live values of a device; buckets are not split.
py::list live_buffers(Ordinal device) {
  py::list out;
  std::unordered_set<PyObject*> seen;
  for (const auto& node : live_values(device)) {
    PyObject* array = node->buffer ? node->buffer->storage() : nullptr;
    if (array != nullptr && seen.insert(array).second) {
      out.append(py::reinterpret_borrow<py::object>(array));
    }
  }
  return out;
}

// Returns (scope, [(function, file, line), ...] innermost first) of a source location's id; None for 0.
py::object origin(uint32_t number) {
  const SourceLocation* found = find_origin(number);
  if (found == nullptr) {
    return py::none();
  }
  py::list frames;
  for (const Frame& frame : found->frames) {
    const auto code = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(frame.code));
    frames.append(py::make_tuple(code.attr("co_name"), code.attr("co_filename"),
                                 PyCode_Addr2Line(frame.code, frame.instruction)));
  }
  return py::make_tuple(found->scope, frames);
}

void bind_origins(py::module_& m) {
  m.def("set_capture", [](bool on) { capturing_origins.store(on); });
  m.def("is_capturing", [] { return capturing_origins.load(); });
  m.def("set_scope", &set_scope);
  m.def("origin", &origin);
}

// Returns (array, bytes, provenance) of every buffer of a device, oldest first.
py::list buffers(Ordinal device) {
  while (const BucketPtr bucket = find_filled_bucket(device)) {
    bucket->split();
  }
  py::list out;
  for (const BufferEntry& entry : list_buffers(device)) {
    out.append(py::make_tuple(py::reinterpret_steal<py::object>(entry.array), entry.bytes, entry.provenance));
  }
  return out;
}

void bind_memory(py::module_& m) {
  m.def("buffers", &buffers);
  m.def("set_provenance", &set_provenance);
  m.def("set_unsharded_bytes", &set_unsharded_bytes);
  m.def("take_peak", [](Ordinal device) { return take_peak(device); });
  m.def("memory_use", [](Ordinal device) {
    const MemoryUse use = memory_use(device);
    return py::make_tuple(use.bytes, use.peak, use.buffers, use.highest);
  });
}

void bind_state(py::module_& m) {
  m.def("live_buffers", &live_buffers);
  m.def("live_nodes", [](Ordinal device) { return live_values(device); });
  m.def("live_tensor_count", [](Ordinal device) { return device_state(device).live(); });
  m.def("pending_count", [](Ordinal device) { return device_state(device).pending.load(); });
  m.def("set_pending_limit", [](int64_t n) { pending_limit().store(n); });
  m.def("set_constant_numbers", &set_constant_numbers);
  m.def("set_advertised_devices", [](int n) { advertised_devices().store(n); });
  m.def("set_missing_device_advice", [](std::string advice) { missing_device_advice() = std::move(advice); });
  m.def("current_device", [] { return static_cast<int>(current_device()); });
  m.def("set_current_device", [](Ordinal device) { set_current_device(device); });
  m.def("set_seed", [](Ordinal device, uint64_t seed) { set_seed(device, seed); });
  m.def("set_all_seeds", &set_all_seeds);
  m.def("draws_since_flush", [](Ordinal device) { return draws_since_flush(device); });
  m.def("get_seed", [](Ordinal device) { return get_seed(device); });
  py::class_<Counter, std::unique_ptr<Counter, py::nodelete>>(m, "Counter").def("add", &Counter::add, py::arg("n") = 1);
  m.def("counter", [](const std::string& name) { return counter(name); }, py::return_value_policy::reference);
  m.def("counters", &counters);
  m.def("clear_counters", &clear_counters);
  m.def("verify_output_specs", &verify_cache);
  m.def("validate_ordinal", [](Ordinal device) { return static_cast<int>(device); });
  m.def("validate_device", [](const at::Device& device) {
    TORCH_CHECK(device.is_xla(), "expected an xla device, got ", device);
    return static_cast<int>(validated_ordinal(device.has_index() ? device.index() : current_device()));
  });
}

}  // namespace

py::list nodes_to_python(const std::vector<NodePtr>& nodes) {
  py::list found;
  for (const auto& node : nodes) {
    found.append(py::cast(node));
  }
  return found;
}

}  // namespace torch_xla

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace torch_xla;
  bind_graph(m);
  bind_memory(m);
  bind_state(m);
  bind_origins(m);
  bind_interpreter(m);
  bind_host_tensor(m);
  bind_graph_interpreter(m);
  bind_calls(m);
  bind_sync_reasons(m);
  bind_state_snapshot(m);
  bind_replay(m);
  bind_object_guards(m);
  bind_profiler(m);
  m.def("register_special_kernels", &register_special_kernels);
  m.def("register_recorded_ops", &register_recorded);
  m.def("mark_decomposition", &mark_decomposition);
  m.def("register_schema_kinds", &register_variants);
}
