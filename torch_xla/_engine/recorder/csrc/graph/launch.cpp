#include "graph/launch.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <array>
#include <cstring>
#include <thread>
#include <unordered_map>

#include "runtime/device.h"
#include "runtime/execution_lock.h"
#include "runtime/memory_stats.h"
#include "runtime/python_hooks.h"
#include "support/counters.h"

namespace py = pybind11;
namespace torch_xla {
namespace {

// Sets jax's config options as our own calls of jax require, and opens its transfer guards: on this thread, from
// enter() to leave(). A Python context manager whose methods are C++, so that no interrupt can occur between a change
// and the record that it has to be undone.
class JaxConfigScope {
 public:
  JaxConfigScope(py::list options, py::object guard, py::object allow)
      : options_(std::move(options)), guard_(std::move(guard)), allow_(std::move(allow)) {}

  void enter() {
    for (const py::handle& option : options_) {
      before_.append(option[py::int_(0)](option[py::int_(2)]));
    }
    if (guard_ && !guard_.is_none()) {
      levels_ = guard_();
      for (const py::handle kind : kinds()) {
        before_.append(levels_.attr(kind));
        levels_.attr(kind) = allow_;
      }
    }
  }

  void leave() {
    const py::list before = std::exchange(before_, py::list());
    for (size_t i = options_.size(); i < before.size(); ++i) {
      levels_.attr(kinds()[i - options_.size()]) = before[i];
    }
    for (size_t i = options_.size(); i-- > 0;) {
      options_[i][py::int_(1)](before[i]);
    }
  }

 private:
  // Names of the guards as strings of Python, which live as long as the process.
  static const std::array<py::handle, 3>& kinds() {
    static const std::array<py::handle, 3> names{PyUnicode_InternFromString("host_to_device"),
                                                 PyUnicode_InternFromString("device_to_device"),
                                                 PyUnicode_InternFromString("device_to_host")};
    return names;
  }

  py::list options_;  // of (new value -> old value, old value -> None, value)
  py::object guard_;  // -> this thread's transfer guard levels; may be None
  py::object allow_;  // the level that allows transfers
  py::object levels_;
  py::list before_;
};

class ExecutableConfigScope {
 public:
  explicit ExecutableConfigScope(const Executable& executable)
      : config_(executable.options, executable.guard, executable.allow) {
    config_.enter();
  }
  ~ExecutableConfigScope() { config_.leave(); }
  ExecutableConfigScope(const ExecutableConfigScope&) = delete;
  ExecutableConfigScope& operator=(const ExecutableConfigScope&) = delete;

 private:
  JaxConfigScope config_;
};

// Uploads number operands as an array to the program's devices.
template <typename T>
py::object upload_numbers(const Executable& executable, const std::vector<T>& numbers, size_t which) {
  if (numbers.empty()) {
    py::object ready = executable.number_arrays[py::int_(which)];
    if (!ready.is_none()) {
      return ready;
    }
  }
  const py::array_t<T> host(numbers.size(), numbers.data());
  const py::list devices(executable.number_devices);
  py::list shards;
  for (size_t i = 0; i < devices.size(); ++i) {
    shards.append(host);
  }
  return executable.put(executable.number_avals[py::int_(which)], executable.number_sharding, shards, devices);
}

// Uploads number operands, or returns the array of the last launch if the numbers are equal.
template <typename T>
py::object numbers_on_device(const Executable& executable, const std::vector<T>& numbers, std::vector<T>& last,
                             size_t which) {
  py::object& array = executable.last_arrays[which];
  if (!array || numbers.size() != last.size() ||
      (!numbers.empty() && std::memcmp(numbers.data(), last.data(), numbers.size() * sizeof(T)) != 0)) {
    const ExecutableConfigScope config(executable);
    array = upload_numbers(executable, numbers, which);
    last = numbers;
  }
  return array;
}

py::list arguments_of(const Graph& graph, const Executable& executable, const py::object& leaves) {
  py::list out;
  append_number_arrays(out, executable, graph.floats, graph.ints);
  if (leaves.is_none()) {
    for (const Node* leaf : graph.leaves) {
      out.append(borrow(leaf->buffer));
    }
  } else {
    for (const py::handle& leaf : leaves) {
      out.append(leaf);
    }
  }
  return out;
}

// Calls Python on a new thread and waits for it: no signal handler runs there, so nothing can interrupt the call.
py::object call_on_new_thread(const py::object& function, const py::list& arguments) {
  py::object results;
  std::exception_ptr error;
  std::thread thread([&] {
    py::gil_scoped_acquire gil;
    try {
      results = function(arguments);
    } catch (...) {
      error = std::current_exception();
    }
  });
  {
    py::gil_scoped_release release;
    thread.join();
  }
  if (error) {
    std::rethrow_exception(error);
  }
  return results;
}

BufferPtr result_buffer(const Graph& graph, const Executable& executable, size_t i, py::object array, uint32_t from) {
  const uint32_t sharding = executable.shardings.empty() ? 0 : executable.shardings[i];
  return make_buffer(std::move(array), graph.device, executable.sizes[i], from, sharding);
}

// Assigns the results to the graph's roots. Must not throw before materialize(): the donated leaves are gone.
void assign_results(Graph& graph, const Executable& executable, const py::sequence& results, uint32_t provenance) {
  static const CounterPointer executions("ExecuteComputation");
  executions->add();
  add_workspace_peak(graph.device, executable.extra);
  for (const uint32_t position : graph.donated) {
    graph.leaves[position]->buffer->donate();
  }
  std::vector<BufferPtr> values;
  values.reserve(graph.roots.size());
  for (size_t i = 0; i < graph.roots.size(); ++i) {
    values.push_back(result_buffer(graph, executable, i, py::reinterpret_borrow<py::object>(results[i]), provenance));
  }
  graph.materialize(std::move(values));
}

void check_results(const Graph& graph, const Executable& executable) {
  TORCH_INTERNAL_ASSERT(executable.sizes.size() == graph.roots.size(), "a program with ", executable.sizes.size(),
                        " results for a graph with ", graph.roots.size());
}

}  // namespace

void append_number_arrays(py::list& arguments, const Executable& executable, const std::vector<double>& floats,
                          const std::vector<int64_t>& ints) {
  if (executable.put) {
    arguments.append(numbers_on_device(executable, floats, executable.last_floats, 0));
    arguments.append(numbers_on_device(executable, ints, executable.last_ints, 1));
  } else {
    arguments.append(py::array_t<double>(floats.size(), floats.data()));
    arguments.append(py::array_t<int64_t>(ints.size(), ints.data()));
  }
}

py::tuple start(const Executable& executable, const py::list& arguments) {
  if (!executable.execute) {
    return py::make_tuple(call_on_new_thread(executable.call, arguments), py::none());
  }
  const py::object started = executable.execute(arguments, executable.tokens);
  const py::object token = executable.tokens ? started.attr("consume_token")() : py::none();
  return py::make_tuple(started.attr("consume_with_handlers")(executable.handlers), token);
}

py::tuple launch(Graph& graph, const Executable& executable, const py::object& leaves) {
  check_results(graph, executable);
  const uint32_t provenance = take_provenance();
  const py::list arguments = arguments_of(graph, executable, leaves);
  py::tuple started = start(executable, arguments);
  assign_results(graph, executable, py::sequence(started[0]), provenance);
  return started;
}

py::list launch_joined(const std::vector<Graph*>& graphs, const Executable& executable, const py::list& arguments) {
  for (const Graph* graph : graphs) {
    check_results(*graph, executable);
  }
  const uint32_t provenance = take_provenance();
  // For each result, its shards in device order.
  py::list shards;
  if (executable.execute) {
    shards = executable.execute(arguments).attr("disassemble_into_single_device_arrays")();
  } else {
    shards = call_on_new_thread(executable.call, arguments);
  }
  py::list results;
  for (size_t device = 0; device < graphs.size(); ++device) {
    py::list device_results;
    for (const py::handle& result : shards) {
      device_results.append(py::reinterpret_borrow<py::sequence>(result)[device]);
    }
    assign_results(*graphs[device], executable, device_results, provenance);
    results.append(device_results);
  }
  return results;
}

// A result that is an input passed through shares its buffer, so that neither is donated while the other is read.
void set_results(Graph& graph, const py::sequence& results) {
  const uint32_t provenance = take_provenance();
  std::unordered_map<PyObject*, BufferPtr> inputs;
  for (const Node* leaf : graph.leaves) {
    inputs.emplace(leaf->buffer->storage(), leaf->buffer);
  }
  std::vector<BufferPtr> values;
  values.reserve(graph.roots.size());
  for (const auto& item : results) {
    const auto found = inputs.find(item.ptr());
    if (found != inputs.end()) {
      values.push_back(found->second);
      continue;
    }
    const auto bytes = item.attr("nbytes").cast<int64_t>();
    values.push_back(make_buffer(py::reinterpret_borrow<py::object>(item), graph.device, bytes, provenance, 0));
  }
  inputs.clear();
  graph.materialize(std::move(values));
}

void bind_launch(py::module_& m, py::class_<Graph>& graph) {
  const auto optional = [](const py::object& value) { return value.is_none() ? py::object() : value; };
  py::class_<Executable>(m, "Executable")
      .def(
          py::init([optional](const py::object& execute, const py::object& handlers, const py::object& call,
                              const py::object& put, const py::list& options, const py::object& guard,
                              const py::object& allow, const py::object& number_avals, const py::object& number_arrays,
                              const py::object& number_sharding, const py::object& number_devices,
                              std::vector<int64_t> sizes, int64_t extra, std::vector<uint32_t> shardings, bool tokens) {
            return Executable{
                optional(execute), optional(handlers), optional(call),   tokens,       optional(put),
                options,           optional(guard),    optional(allow),  number_avals, number_arrays,
                number_sharding,   number_devices,     std::move(sizes), extra,        std::move(shardings)};
          }),
          py::kw_only(), py::arg("execute"), py::arg("handlers"), py::arg("call"), py::arg("put"), py::arg("options"),
          py::arg("guard"), py::arg("allow"), py::arg("number_avals"), py::arg("number_arrays"),
          py::arg("number_sharding"), py::arg("number_devices"), py::arg("sizes"), py::arg("extra"),
          py::arg("shardings"), py::arg("tokens"));
  py::class_<JaxConfigScope>(m, "WideTypes")
      .def(py::init<py::list, py::object, py::object>(), py::arg("options"), py::arg("guard"), py::arg("allow"))
      .def("__enter__", &JaxConfigScope::enter)
      .def("__exit__", [](JaxConfigScope& scope, const py::args&) { scope.leave(); });
  m.def("with_execution_lock", &with_execution_lock);
  m.def("launch_joined", &launch_joined);
  graph.def("launch", &launch, py::arg("executable"), py::arg("leaves") = py::none());
  graph.def("finish", &set_results, py::arg("results"));
}

}  // namespace torch_xla
