// The recorder as a Python module: what the executor (Python) asks of it, and the executor's hooks.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "counters.h"
#include "device.h"
#include "graph.h"
#include "memory.h"
#include "op.h"
#include "origin.h"
#include "record.h"
#include "registration.h"
#include "sharding.h"
#include "signature.h"
#include "tensor.h"

namespace py = pybind11;

namespace torch_xla {
namespace {

// The ordinal of a device, given by Python: one that exists (checked_ordinal). No function here takes a plain int.
struct Ordinal {
  int8_t index = 0;
  operator int8_t() const { return index; }
};

}  // namespace
}  // namespace torch_xla

template <>
struct pybind11::detail::type_caster<torch_xla::Ordinal> {
  PYBIND11_TYPE_CASTER(torch_xla::Ordinal, const_name("int"));

  bool load(handle source, bool convert) {
    make_caster<int64_t> number;
    if (!number.load(source, convert)) {
      return false;
    }
    value.index = torch_xla::checked_ordinal(static_cast<int64_t>(number));
    return true;
  }
};

namespace torch_xla {
namespace {

// The way into Python for threads that torch runs. It closes when the interpreter ends: from then on a thread that asks
// for the GIL is ended inside that call (until Python 3.14), in the middle of C++ whose destructors touch Python. So
// close() lets those inside finish, and whoever comes later, other than the thread that ends the interpreter, waits for
// the end of the process: here or, in an operation that needs no Python, at hold().
class Door {
 public:
  static Door& get() {
    static auto* door = new Door;
    return *door;
  }

  // May be nested: a thread that is inside goes on until it leaves.
  void enter() {
    if (depth_++ > 0) {
      return;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !closed_ || std::this_thread::get_id() == closer_; });
    ++inside_;
  }

  void leave() {
    if (--depth_ > 0) {
      return;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    --inside_;
    changed_.notify_all();
  }

  void close() {
    std::unique_lock<std::mutex> lock(mutex_);
    closed_ = true;
    closer_ = std::this_thread::get_id();
    changed_.wait(lock, [this] { return inside_ == 0; });
  }

  // Holds the thread, unless it is the one that ends the interpreter.
  void hold() const {
    while (std::this_thread::get_id() != closer_) {
      std::this_thread::sleep_for(std::chrono::hours(1));
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread::id closer_;
  bool closed_ = false;
  int64_t inside_ = 0;  // threads
  static thread_local int depth_;
};
thread_local int Door::depth_ = 0;

// Waiting at the door with the GIL would keep those inside from finishing.
void enter() {
  if (PyGILState_Check()) {
    py::gil_scoped_release release;
    Door::get().enter();
  } else {
    Door::get().enter();
  }
}

// Inside Python, with the GIL, while it lives.
class InPython {
 public:
  InPython() {
    enter();
    gil_ = std::make_unique<py::gil_scoped_acquire>();
  }
  ~InPython() {
    gil_.reset();
    Door::get().leave();
  }

 private:
  std::unique_ptr<py::gil_scoped_acquire> gil_;
};

std::terminate_handler& earlier_terminate_handler() {
  static std::terminate_handler handler = nullptr;
  return handler;
}

// For a thread that is in other C++ than ours when it is ended as described above: where that must not be unwound,
// std::terminate would abort a process that has ended well.
[[noreturn]] void hold_or_terminate() {
  if (!std::current_exception()) {
    Door::get().hold();
  }
  earlier_terminate_handler()();
  std::abort();
}

// With `threads`, other threads of the interpreter are alive; those on their way back from an operation get the time to
// arrive in Python, where being ended is harmless.
void close(bool threads) {
  {
    py::gil_scoped_release release;
    Door::get().close();
    closing.store(true);
    if (threads) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
  abandon_buffers();
  earlier_terminate_handler() = std::set_terminate(&hold_or_terminate);
}

// A hook: a Python function that any thread may call until the very end. Never destroyed: at exit there is no
// interpreter left to give the reference back to.
class Hook {
 public:
  explicit Hook(const py::object& function) : function_(function.inc_ref().ptr()) {}
  template <typename... Args>
  py::object operator()(Args&&... args) const {
    return py::reinterpret_borrow<py::function>(function_)(std::forward<Args>(args)...);
  }

 private:
  PyObject* function_;
};

BufferPtr steal(py::object array, int device, int64_t bytes, uint32_t maker, uint32_t sharding) {
  return c10::make_intrusive<Buffer>(array.release().ptr(), static_cast<int8_t>(device), bytes, maker, sharding);
}

// Of a hook, which may have said where the buffer comes from, and how it lies.
BufferPtr steal(py::object array, int device) {
  const auto bytes = array.attr("nbytes").cast<int64_t>();
  return steal(std::move(array), device, bytes, take_maker(), take_sharding());
}

py::object borrow(const BufferPtr& buffer) { return py::reinterpret_borrow<py::object>(buffer->array); }

void set_hooks(const py::object& device_count, const py::object& upload, const py::object& download,
               const py::object& transfer, const py::object& materialize, const py::object& cut,
               const py::object& fallback, const py::object& fallback_done) {
  Hooks& h = hooks();
  h.device_count = [f = Hook(device_count)] {
    InPython here;
    return f().cast<int>();
  };
  h.upload = [f = Hook(upload)](const at::Tensor& t, int8_t device) {
    InPython here;
    return steal(f(t, static_cast<int>(device)), device);
  };
  h.download = [f = Hook(download)](const BufferPtr& buffer, at::ScalarType dtype) {
    InPython here;
    return f(borrow(buffer), static_cast<int>(dtype)).cast<at::Tensor>();
  };
  h.transfer = [f = Hook(transfer)](const BufferPtr& buffer, int8_t device) {
    InPython here;
    return steal(f(borrow(buffer), static_cast<int>(device)), device);
  };
  h.materialize = [f = Hook(materialize)](const std::vector<NodePtr>& nodes, int8_t device) {
    InPython here;
    py::list values;
    for (const auto& node : nodes) {
      values.append(py::cast(node));
    }
    f(values, static_cast<int>(device));
  };
  h.cut = [f = Hook(cut)](int8_t device) {
    InPython here;
    f(static_cast<int>(device));
  };
  h.enter = &enter;
  h.leave = [] { Door::get().leave(); };
  h.hold = [] {
    if (PyGILState_Check()) {
      py::gil_scoped_release release;
      Door::get().hold();
    } else {
      Door::get().hold();
    }
  };
  h.fallback = [f = Hook(fallback)](const std::string& name) {
    InPython here;
    f(name);
  };
  h.fallback_done = [f = Hook(fallback_done)] {
    InPython here;
    f();
  };
}

// --- a graph, spelled out for the lowering (on a cache miss only) ---------------------------------------------------

// How an argument is written down: (tag, payload).
enum ArgTag {
  kConstant = 0,
  kReference = 1,
  kReferences = 2,
  kFloatOperand = 3,
  kIntOperand = 4,
  kComplexOperand = 5,
  kDtype = 6,
  kList = 7
};

enum NodeForm { kFunctional = 0, kInPlace = 1, kScatter = 2 };

class Description {
 public:
  explicit Description(const Graph& graph) : graph_(graph) {}

  py::list nodes() {
    py::list out;
    for (const Node* node : graph_.nodes) {
      const Op* op = node->op->functional ? node->op->functional : node->op;
      const int form = node->is_scatter ? kScatter : node->op->functional ? kInPlace : kFunctional;
      out.append(py::make_tuple(op->name, form, arguments(*node), results(*node->signature), node->signature->is_list,
                                node->origin, static_cast<int>(node->default_dtype)));
    }
    return out;
  }

 private:
  py::object reference(const Node* input) const {
    const size_t position = input->pending() ? graph_.leaves.size() + input->index : input->index;
    return py::make_tuple(static_cast<int>(kReference), position);
  }

  static py::list results(const Signature& signature) {
    py::list out;
    for (const auto& shape : signature.outs) {
      out.append(py::make_tuple(py::tuple(py::cast(std::vector<int64_t>(shape.sizes.begin(), shape.sizes.end()))),
                                static_cast<int>(shape.dtype)));
    }
    return out;
  }

  py::object number(const c10::IValue& value) {
    if (value.isNone() || is_constant_number(value)) {
      return py::make_tuple(static_cast<int>(kConstant), torch::jit::toPyObject(value));
    }
    if (value.isInt()) {
      return py::make_tuple(static_cast<int>(kIntOperand), ints_++);
    }
    if (value.isDouble()) {
      return py::make_tuple(static_cast<int>(kFloatOperand), floats_++);
    }
    floats_ += 2;
    return py::make_tuple(static_cast<int>(kComplexOperand), floats_ - 2);
  }

  py::list arguments(const Node& node) {
    py::list out;
    if (node.op == seed_op()) {
      out.append(py::make_tuple(static_cast<int>(kIntOperand), ints_++));
      return out;
    }
    if (node.op == getitem_op()) {
      out.append(reference(node.inputs[0].get()));
      out.append(py::make_tuple(static_cast<int>(kConstant), node.out));
      return out;
    }
    for (size_t i = 0; i < node.op->kinds.size(); ++i) {
      out.append(argument(node, i));
    }
    if (node.is_scatter) {  // the view's value, and which of the op's results it is
      out.append(reference(node.inputs[1].get()));
      out.append(py::make_tuple(static_cast<int>(kConstant), node.attrs.back().toInt()));
    }
    if (node.op->random) {
      out.append(reference(node.inputs.back().get()));
      out.append(py::make_tuple(static_cast<int>(kConstant), node.attrs.back().toInt()));
    }
    return out;
  }

  py::object argument(const Node& node, size_t i) {
    const c10::IValue& value = node.attrs[i];
    switch (node.op->kinds[i]) {
      case ArgKind::kTensor:
        if (node.numbers >> i & 1) {
          return number(value);
        }
        return value.isNone() ? number(value) : reference(node.inputs[value.toInt()].get());
      case ArgKind::kTensorList: {
        if (value.isNone()) {
          return number(value);
        }
        py::list list;
        for (const int64_t position : value.toIntVector()) {
          list.append(position < 0 ? py::object(py::make_tuple(static_cast<int>(kConstant), py::none()))
                                   : reference(node.inputs[position].get()));
        }
        return py::make_tuple(static_cast<int>(kReferences), list);
      }
      case ArgKind::kScalar:
        return number(value);
      case ArgKind::kScalars: {
        py::list list;
        for (const c10::IValue& element : value.toListRef()) {
          list.append(number(element));
        }
        return py::make_tuple(static_cast<int>(kList), list);
      }
      case ArgKind::kDtype:
        return value.isNone() ? number(value)
                              : py::object(py::make_tuple(static_cast<int>(ArgTag::kDtype), value.toInt()));
      default:
        return py::make_tuple(static_cast<int>(kConstant), torch::jit::toPyObject(value));
    }
  }

  const Graph& graph_;
  size_t floats_ = 0;
  size_t ints_ = 0;
};

py::bytes key_bytes(const Key& key) {
  char raw[16];
  std::memcpy(raw, &key.a, 8);
  std::memcpy(raw + 8, &key.b, 8);
  return py::bytes(raw, sizeof(raw));
}

py::list root_positions(const Graph& graph) {
  py::list out;
  for (const auto& root : graph.roots) {
    out.append((root->pending() ? graph.leaves.size() : 0) + root->index);
  }
  return out;
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

// A result that is an input handed through shares its buffer, so that neither is donated while the other is read.
// `sizes`: the bytes of each result; without them each result is asked, which costs more. `shardings`: how each lies;
// without them each is on one device.
void finish(Graph& graph, const py::sequence& results, const std::optional<std::vector<int64_t>>& sizes,
            const std::optional<std::vector<uint32_t>>& shardings) {
  const uint32_t maker = take_maker();
  for (const uint32_t position : graph.donated) {
    graph.leaves[position]->buffer->donate();
  }
  std::unordered_map<PyObject*, BufferPtr> inputs;
  for (const Node* leaf : graph.leaves) {
    inputs.emplace(leaf->buffer->array, leaf->buffer);
  }
  std::vector<BufferPtr> values;
  values.reserve(graph.roots.size());
  for (const auto& item : results) {
    const auto found = inputs.find(item.ptr());
    if (found != inputs.end()) {
      values.push_back(found->second);
      continue;
    }
    const int64_t bytes = sizes ? sizes->at(values.size()) : item.attr("nbytes").cast<int64_t>();
    const uint32_t sharding = shardings ? shardings->at(values.size()) : 0;
    values.push_back(steal(py::reinterpret_borrow<py::object>(item), graph.device, bytes, maker, sharding));
  }
  inputs.clear();
  graph.materialize(std::move(values));
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

std::vector<NodePtr> nodes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<NodePtr> out;
  for (const auto& t : tensors) {
    if (XlaTensor* x = maybe_xla(t)) {
      out.push_back(x->value());
    }
  }
  return out;
}

XlaTensor& xla(const at::Tensor& t) {
  XlaTensor* x = maybe_xla(t);
  TORCH_CHECK(x != nullptr, "Input tensor is not an XLA tensor: ", t.toString(), " on ", t.device());
  return *x;
}

// A tensor of its own with a buffer that exists already.
at::Tensor tensor_of_buffer(const py::object& array, int dtype, Ordinal device) {
  const auto shape = array.attr("shape").cast<std::vector<int64_t>>();
  return make_tensor(
      make_leaf(steal(array, device), make_signature(static_cast<at::ScalarType>(dtype), shape), device));
}

// Lays a tensor out in another way, in place; `array`: its value, laid out so already.
void lay_out_tensor(const at::Tensor& t, uint32_t sharding, const std::optional<py::object>& array) {
  XlaTensor& x = xla(t);
  NodePtr value = x.value();
  if (array) {
    set_sharding(sharding);
    const Shape& shape = value->shape();
    x.lay_out(make_leaf(steal(*array, x.device_index()), make_signature(shape.dtype, shape.sizes), x.device_index()));
  } else {
    x.lay_out(lay_out(value, sharding, current_origin()));
  }
}

at::Tensor laid_out(const at::Tensor& t, uint32_t sharding) {
  return make_tensor(lay_out(xla(t).value(), sharding, current_origin()));
}

void bind_graph(py::module_& m) {
  py::class_<Node, NodePtr>(m, "Node")
      .def_property_readonly("pending", &Node::pending)
      .def_property_readonly("device", [](const Node& n) { return static_cast<int>(n.device); })
      .def_property_readonly("origin", [](const Node& n) { return n.origin; })
      .def_property_readonly("sharding", [](const Node& n) { return n.sharding.load(std::memory_order_relaxed); })
      .def_property_readonly("buffer",
                             [](const Node& n) { return n.buffer ? borrow(n.buffer) : py::object(py::none()); });
  py::class_<Graph>(m, "Graph")
      .def_property_readonly("key", [](const Graph& g) { return key_bytes(g.key); })
      .def_property_readonly("device", [](const Graph& g) { return static_cast<int>(g.device); })
      .def_property_readonly("node_count", [](const Graph& g) { return g.nodes.size(); })
      .def_property_readonly("root_count", [](const Graph& g) { return g.roots.size(); })
      .def_property_readonly("donated", [](const Graph& g) { return g.donated; })
      .def_property_readonly("leaf_shapes",
                             [](const Graph& g) {
                               py::list out;
                               for (const Node* leaf : g.leaves) {
                                 const auto& s = leaf->shape();
                                 out.append(py::make_tuple(std::vector<int64_t>(s.sizes.begin(), s.sizes.end()),
                                                           static_cast<int>(s.dtype)));
                               }
                               return out;
                             })
      .def_property_readonly("leaf_origins",
                             [](const Graph& g) {
                               std::vector<uint32_t> out;
                               for (const Node* leaf : g.leaves) {
                                 out.push_back(leaf->origin);
                               }
                               return out;
                             })
      .def("inputs", &leaf_buffers)
      .def("floats", [](const Graph& g) { return py::array_t<double>(g.floats.size(), g.floats.data()); })
      .def("ints", [](const Graph& g) { return py::array_t<int64_t>(g.ints.size(), g.ints.data()); })
      .def("describe", [](const Graph& g) { return Description(g).nodes(); })
      .def("roots", &root_positions)
      .def("finish", &finish, py::arg("results"), py::arg("sizes") = py::none(), py::arg("shardings") = py::none())
      .def_property_readonly("root_shardings", &root_shardings);
  m.def("collect", &collect, py::arg("device"), py::arg("wanted") = py::none());
  m.def("collect_only", [](Ordinal device, const std::vector<NodePtr>& wanted) {
    drain_parked_buffers();
    return collect_only(device, wanted);
  });
  m.def("nodes_of", &nodes_of);
  m.def("tensor_id", [](const at::Tensor& t) { return xla(t).id(); });
  m.def("memory_id", [](const at::Tensor& t) { return xla(t).memory_id(); });
  m.def("lay_out", &lay_out_tensor, py::arg("tensor"), py::arg("sharding"), py::arg("array") = py::none());
  m.def("laid_out", &laid_out);
  m.def("is_view", [](const at::Tensor& t) { return xla(t).is_view(); });
  m.def("set_sharding", &set_sharding);
  m.def("make_tensor", &tensor_of_buffer, py::arg("array"), py::arg("dtype"), py::arg("device"));
}

// The buffers of all live values of a device, each once.
py::list live_buffers(Ordinal device) {
  py::list out;
  std::unordered_set<Buffer*> seen;
  for (const auto& node : live_values(device)) {
    if (node->buffer && seen.insert(node->buffer.get()).second) {
      out.append(borrow(node->buffer));
    }
  }
  return out;
}

// (scope, [(function, file, line), ...] innermost first) of an origin's number; None for 0.
py::object origin(uint32_t number) {
  const Origin* found = find_origin(number);
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
  m.def("capturing", [] { return capturing_origins.load(); });
  m.def("set_scope", &set_scope);
  m.def("origin", &origin);
}

// (array, bytes, maker) of every buffer of a device, oldest first.
py::list buffers(Ordinal device) {
  py::list out;
  for (const BufferEntry& entry : list_buffers(device)) {
    out.append(py::make_tuple(py::reinterpret_steal<py::object>(entry.array), entry.bytes, entry.maker));
  }
  return out;
}

void bind_memory(py::module_& m) {
  m.def("buffers", &buffers);
  m.def("set_maker", &set_maker);
  m.def("take_peak", [](Ordinal device) { return take_peak(device); });
  m.def("memory_use", [](Ordinal device) {
    const MemoryUse use = memory_use(device);
    return py::make_tuple(use.bytes, use.peak, use.buffers);
  });
}

void bind_state(py::module_& m) {
  m.def("live_buffers", &live_buffers);
  m.def("live_nodes", [](Ordinal device) { return live_values(device); });
  m.def("live_tensor_count", [](Ordinal device) { return device_state(device).live; });
  m.def("pending_count", [](Ordinal device) { return device_state(device).pending.load(); });
  m.def("set_pending_limit", [](int64_t n) { pending_limit().store(n); });
  m.def("set_constant_numbers", &set_constant_numbers);
  m.def("set_advertised_devices", [](int n) { advertised_devices().store(n); });
  m.def("current_device", [] { return static_cast<int>(current_device()); });
  m.def("set_current_device", [](Ordinal device) { set_current_device(device); });
  m.def("set_seed", [](Ordinal device, uint64_t seed) { set_seed(device, seed); });
  m.def("set_all_seeds", &set_all_seeds);
  m.def("get_seed", [](Ordinal device) { return get_seed(device); });
  m.def("count", [](const std::string& name, int64_t n) { counter(name)->add(n); }, py::arg("name"), py::arg("n") = 1);
  m.def("counters", &counters);
  m.def("clear_counters", &clear_counters);
  m.def("close", &close, py::arg("threads"));
  m.def("check_signatures", &check_signatures);
  m.def("checked_ordinal", [](Ordinal device) { return static_cast<int>(device); });
  m.def("checked_device", [](const at::Device& device) {
    TORCH_CHECK(device.is_xla(), "expected an xla device, got ", device);
    return static_cast<int>(checked_ordinal(device.has_index() ? device.index() : current_device()));
  });
}

}  // namespace
}  // namespace torch_xla

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace torch_xla;
  bind_graph(m);
  bind_memory(m);
  bind_state(m);
  bind_origins(m);
  m.def("set_hooks", &set_hooks, py::kw_only(), py::arg("device_count"), py::arg("upload"), py::arg("download"),
        py::arg("transfer"), py::arg("materialize"), py::arg("cut"), py::arg("fallback"), py::arg("fallback_done"));
  m.def("register_special_kernels", &register_special_kernels);
  m.def("register_recorded", &register_recorded);
  m.def("register_forms", &register_forms);
}
