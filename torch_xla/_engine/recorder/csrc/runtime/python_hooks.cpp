// Hooks into Python, and interpreter shutdown.
#include "runtime/python_hooks.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>

#include "compat/python_internal.h"
#include "runtime/device.h"
#include "runtime/memory_stats.h"
#include "runtime/pending_sharding.h"
#include "support/fork_safe_lock.h"

namespace py = pybind11;
namespace torch_xla {
namespace {

// Guards entry into Python for threads that torch runs. Once the interpreter shuts down, a thread that requests the GIL
// is terminated inside that call (before Python 3.14), in the middle of C++ whose destructors touch Python. So close()
// waits until all threads inside have left, and any thread that enters later, other than the one that shuts the
// interpreter down, blocks until the process ends: here or, for operations that need no Python, in block().
class ShutdownGate {
 public:
  static ShutdownGate& get() {
    static auto* gate = new ShutdownGate;
    return *gate;
  }

  // Reentrant: a nested call never blocks.
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

  // A child process has none of the threads inside or waiting; the forking thread may be inside itself.
  void register_fork_handlers() {
    at_fork({this, [](void* gate) { static_cast<ShutdownGate*>(gate)->mutex_.lock(); },
             [](void* gate) { static_cast<ShutdownGate*>(gate)->mutex_.unlock(); },
             [](void* gate) {
               new (&static_cast<ShutdownGate*>(gate)->mutex_) std::mutex;
               new (&static_cast<ShutdownGate*>(gate)->changed_) std::condition_variable;
               static_cast<ShutdownGate*>(gate)->inside_ = depth_ > 0 ? 1 : 0;
             }});
  }

  // Blocks forever, unless this thread shuts the interpreter down.
  void block() const {
    while (!is_closing_thread()) {
      std::this_thread::sleep_for(std::chrono::hours(1));
    }
  }

 private:
  // Returns whether this thread shuts the interpreter down. Reading `closing` does not order earlier writes, hence the
  // mutex.
  bool is_closing_thread() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::this_thread::get_id() == closer_;
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::thread::id closer_;
  bool closed_ = false;
  int64_t inside_ = 0;  // threads
  static thread_local int depth_;
};
thread_local int ShutdownGate::depth_ = 0;

const bool gate_fork_safe = [] {
  ShutdownGate::get().register_fork_handlers();
  return true;
}();

// Error message if this process lost its devices, else null. Set once, by the only thread of a forked child; never
// freed.
std::string* devices_lost_message = nullptr;

// Marks the devices as lost in a forked child of a process that has used one. XLA must not be called any more, not even
// to free memory, so the Python objects in `left` are never freed. Destructors that run after main() would wait for
// threads of the parent: the process exits before them, with its exit code.
void lose_devices(const std::string& message, const py::object& left) {
  devices_lost_message = new std::string(message);
  leak_buffers();
  left.inc_ref();
  on_exit(
      [](int status, void*) {
        std::fflush(nullptr);
        _exit(status);
      },
      nullptr);
}

// Releases the GIL while waiting: threads inside need it to leave.
void enter() {
  if (PyGILState_Check()) {
    py::gil_scoped_release release;
    ShutdownGate::get().enter();
  } else {
    ShutdownGate::get().enter();
  }
}

std::terminate_handler& earlier_terminate_handler() {
  static std::terminate_handler handler = nullptr;
  return handler;
}

// For a thread that is terminated, as described above, in foreign C++ frames that cannot be unwound: std::terminate
// would abort a process that exited successfully.
[[noreturn]] void block_or_terminate() {
  if (!std::current_exception()) {
    ShutdownGate::get().block();
  }
  earlier_terminate_handler()();
  std::abort();
}

// Shuts the gate. If `threads`, other interpreter threads are alive; waits so that those returning from an operation
// reach Python, where termination is harmless.
void close(bool threads) {
  {
    py::gil_scoped_release release;
    ShutdownGate::get().close();
    closing.store(true);
    if (threads) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
  leak_buffers();
  earlier_terminate_handler() = std::set_terminate(&block_or_terminate);
}

// A Python function that any thread may call until shutdown. Never destroyed: at exit no interpreter exists to release
// it.
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

// Drops the attributes that a failed upload set for its buffer.
void clear_pending_attributes() {
  take_provenance();
  take_sharding();
}

void set_hooks(const py::object& device_count, const py::object& upload, const py::object& download,
               const py::object& transfer, const py::object& materialize, const py::object& flush,
               const py::object& fallback, const py::object& fallback_done, const py::object& supports_operator) {
  Hooks& h = hooks();
  h.device_count = [f = Hook(device_count)] {
    GilScope gil;
    return f().cast<int>();
  };
  h.upload = [f = Hook(upload)](const at::Tensor& t, int8_t device) {
    GilScope gil;
    drain_parked_buffers();  // in a loop without steps nothing else does
    clear_pending_attributes();
    return make_buffer(f(t, static_cast<int>(device)), device);
  };
  h.download = [f = Hook(download)](const BufferPtr& buffer, at::ScalarType dtype, at::IntArrayRef sizes) {
    GilScope gil;
    return f(borrow(buffer), static_cast<int>(dtype), py::tuple(py::cast(sizes.vec()))).cast<at::Tensor>();
  };
  h.transfer = [f = Hook(transfer)](const BufferPtr& buffer, int8_t device) {
    GilScope gil;
    drain_parked_buffers();
    clear_pending_attributes();
    return make_buffer(f(borrow(buffer), static_cast<int>(device)), device);
  };
  h.materialize = [f = Hook(materialize)](const std::vector<NodePtr>& nodes, int8_t device) {
    GilScope gil;
    f(nodes_to_python(nodes), static_cast<int>(device));
  };
  h.flush = [f = Hook(flush)](int8_t device) {
    GilScope gil;
    f(static_cast<int>(device));
  };
  h.enter = &enter;
  h.leave = [] { ShutdownGate::get().leave(); };
  h.block_forever = [] {
    if (PyGILState_Check()) {
      py::gil_scoped_release release;
      ShutdownGate::get().block();
    } else {
      ShutdownGate::get().block();
    }
  };
  h.fallback = [f = Hook(fallback)](const std::string& name, bool has_cpu_generator) {
    GilScope gil;
    f(name, has_cpu_generator);
  };
  h.supports_operator = [f = Hook(supports_operator)](const std::string& name) {
    GilScope gil;
    return f(name).cast<bool>();
  };
  h.fallback_done = [f = Hook(fallback_done)] {
    GilScope gil;
    f();
  };
}

}  // namespace

GilScope::GilScope() {
  TORCH_CHECK(devices_lost_message == nullptr, *devices_lost_message);
  enter();
  gil_ = std::make_unique<py::gil_scoped_acquire>();
}

GilScope::~GilScope() {
  gil_.reset();
  ShutdownGate::get().leave();
}

BufferPtr make_buffer(py::object array, int device, int64_t bytes, uint32_t provenance, uint32_t sharding) {
  return c10::make_intrusive<Buffer>(array.release().ptr(), static_cast<int8_t>(device), bytes, provenance, sharding);
}

BufferPtr make_buffer(py::object array, int device) {
  const PendingSharding pending = take_sharding();
  const int64_t bytes = pending.bytes >= 0 ? pending.bytes : array.attr("nbytes").cast<int64_t>();
  return make_buffer(std::move(array), device, bytes, take_provenance(), pending.sharding);
}

void bind_interpreter(py::module_& m) {
  m.def("set_hooks", &set_hooks, py::kw_only(), py::arg("device_count"), py::arg("upload"), py::arg("download"),
        py::arg("transfer"), py::arg("materialize"), py::arg("cut"), py::arg("fallback"), py::arg("fallback_done"),
        py::arg("supports_operator"));
  m.def("close", &close, py::arg("threads"));
  m.def("lose_devices", &lose_devices);
}

}  // namespace torch_xla
