// Hooks into Python, and the end of the interpreter.
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
#include "dispatch/sharding.h"
#include "runtime/device.h"
#include "runtime/memory_stats.h"
#include "support/fork_safe_lock.h"

namespace py = pybind11;
namespace torch_xla {
namespace {

// The way into Python for threads that torch runs. It closes when the interpreter ends: from then on a thread that asks
// for the GIL is ended inside that call (until Python 3.14), in the middle of C++ whose destructors touch Python. So
// close() lets those inside finish, and whoever comes later, other than the thread that ends the interpreter, waits for
// the end of the process: here or, in an operation that needs no Python, at hold().
class ShutdownGate {
 public:
  static ShutdownGate& get() {
    static auto* door = new ShutdownGate;
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

  // A child has none of the threads that were inside or waiting; the forking one may be inside itself.
  void hold_at_fork() {
    at_fork({this, [](void* gate) { static_cast<ShutdownGate*>(gate)->mutex_.lock(); },
             [](void* gate) { static_cast<ShutdownGate*>(gate)->mutex_.unlock(); },
             [](void* gate) {
               new (&static_cast<ShutdownGate*>(gate)->mutex_) std::mutex;
               new (&static_cast<ShutdownGate*>(gate)->changed_) std::condition_variable;
               static_cast<ShutdownGate*>(gate)->inside_ = depth_ > 0 ? 1 : 0;
             }});
  }

  // Holds the thread, unless it is the one that ends the interpreter.
  void hold() const {
    while (!closes()) {
      std::this_thread::sleep_for(std::chrono::hours(1));
    }
  }

 private:
  // Whether this thread ends the interpreter. `closing`, by which one comes here, says nothing of what was written
  // before it.
  bool closes() const {
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

const bool gate_held = [] {
  ShutdownGate::get().hold_at_fork();
  return true;
}();

// Why this process has no devices; null: it has. Set once, by the only thread of a forked child, and never freed.
std::string* lost = nullptr;

// In a child of a process that has used a device: nothing of XLA may be called any more, not even to free what it owns.
// `left` are Python objects that are never freed. Destructors that run after main() would wait for threads of the
// parent, so the process ends before them, with its own exit code.
void lose_devices(const std::string& why, const py::object& left) {
  lost = new std::string(why);
  leak_buffers();
  left.inc_ref();
  on_exit(
      [](int status, void*) {
        std::fflush(nullptr);
        _exit(status);
      },
      nullptr);
}

// Waiting at the gate with the GIL would keep those inside from finishing.
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

// For a thread that is in other C++ than ours when it is ended as described above: where that must not be unwound,
// std::terminate would abort a process that has ended well.
[[noreturn]] void hold_or_terminate() {
  if (!std::current_exception()) {
    ShutdownGate::get().hold();
  }
  earlier_terminate_handler()();
  std::abort();
}

// With `threads`, other threads of the interpreter are alive; those on their way back from an operation get the time to
// arrive in Python, where being ended is harmless.
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

// What an upload that raised had noted of its buffer is not of the next one.
void forget_notes() {
  take_provenance();
  take_sharding();
}

void set_hooks(const py::object& device_count, const py::object& upload, const py::object& download,
               const py::object& transfer, const py::object& materialize, const py::object& cut,
               const py::object& fallback, const py::object& fallback_done) {
  Hooks& h = hooks();
  h.device_count = [f = Hook(device_count)] {
    GilScope here;
    return f().cast<int>();
  };
  h.upload = [f = Hook(upload)](const at::Tensor& t, int8_t device) {
    GilScope here;
    forget_notes();
    return make_buffer(f(t, static_cast<int>(device)), device);
  };
  h.download = [f = Hook(download)](const BufferPtr& buffer, at::ScalarType dtype, at::IntArrayRef sizes) {
    GilScope here;
    return f(borrow(buffer), static_cast<int>(dtype), py::tuple(py::cast(sizes.vec()))).cast<at::Tensor>();
  };
  h.transfer = [f = Hook(transfer)](const BufferPtr& buffer, int8_t device) {
    GilScope here;
    forget_notes();
    return make_buffer(f(borrow(buffer), static_cast<int>(device)), device);
  };
  h.materialize = [f = Hook(materialize)](const std::vector<NodePtr>& nodes, int8_t device) {
    GilScope here;
    py::list values;
    for (const auto& node : nodes) {
      values.append(py::cast(node));
    }
    f(values, static_cast<int>(device));
  };
  h.flush = [f = Hook(cut)](int8_t device) {
    GilScope here;
    f(static_cast<int>(device));
  };
  h.enter = &enter;
  h.leave = [] { ShutdownGate::get().leave(); };
  h.block_forever = [] {
    if (PyGILState_Check()) {
      py::gil_scoped_release release;
      ShutdownGate::get().hold();
    } else {
      ShutdownGate::get().hold();
    }
  };
  h.fallback = [f = Hook(fallback)](const std::string& name) {
    GilScope here;
    f(name);
  };
  h.fallback_done = [f = Hook(fallback_done)] {
    GilScope here;
    f();
  };
}

}  // namespace

GilScope::GilScope() {
  TORCH_CHECK(lost == nullptr, *lost);
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
  const PendingSharding note = take_sharding();
  const int64_t bytes = note.bytes >= 0 ? note.bytes : array.attr("nbytes").cast<int64_t>();
  return make_buffer(std::move(array), device, bytes, take_provenance(), note.sharding);
}

void bind_interpreter(py::module_& m) {
  m.def("set_hooks", &set_hooks, py::kw_only(), py::arg("device_count"), py::arg("upload"), py::arg("download"),
        py::arg("transfer"), py::arg("materialize"), py::arg("cut"), py::arg("fallback"), py::arg("fallback_done"));
  m.def("close", &close, py::arg("threads"));
  m.def("lose_devices", &lose_devices);
}

}  // namespace torch_xla
