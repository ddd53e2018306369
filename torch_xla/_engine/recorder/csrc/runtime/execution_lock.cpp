#include "runtime/execution_lock.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <new>
#include <thread>

#include "runtime/device.h"
#include "support/fork_safe_lock.h"

namespace py = pybind11;
namespace torch_xla {
namespace {

// The execution lock of one device. Not reentrant.
class ExecutionLock {
 public:
  // Waits without the GIL; Ctrl-C interrupts the wait.
  void acquire() {
    if (owner_.load(std::memory_order_relaxed) == std::this_thread::get_id()) {
      const py::object line = py::module_::import("torch_xla._engine.base.user_frames").attr("user_line")();
      throw std::runtime_error(
          "torch_xla: an xla tensor was read while this thread was building a graph of the same device, by " +
          line.cast<std::string>() + "; do not read xla tensors in __del__ methods or signal handlers");
    }
    while (!mutex_.try_lock_for(std::chrono::nanoseconds(0))) {
      bool acquired = false;
      {
        py::gil_scoped_release release;
        acquired = mutex_.try_lock_for(std::chrono::milliseconds(50));
      }
      if (acquired) {
        break;
      }
      if (PyErr_CheckSignals() != 0) {
        throw py::error_already_set();
      }
    }
    owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }

  void release() {
    owner_.store(std::thread::id(), std::memory_order_relaxed);
    mutex_.unlock();
  }

 private:
  std::timed_mutex mutex_;
  std::atomic<std::thread::id> owner_{};
};

ExecutionLock* execution_locks() {
  static auto* locks = new ExecutionLock[kMaxDevices];
  return locks;
}

// Not acquired before a fork, because the forking thread need not wait until a step ends. In the child the locks are
// reinitialized: threads that held one do not exist there, so it would wait forever.
const bool locks_reset_in_child = [] {
  const auto no_op = [](void*) {};
  at_fork({execution_locks(), no_op, no_op, [](void* locks) {
             for (int i = 0; i < kMaxDevices; ++i) {
               new (static_cast<ExecutionLock*>(locks) + i) ExecutionLock;
             }
           }});
  return true;
}();

}  // namespace

py::object with_execution_lock(Ordinal device, const py::function& function, const py::args& args) {
  ExecutionLock& lock = execution_locks()[device];
  lock.acquire();
  struct Release {
    ExecutionLock& lock;
    ~Release() { lock.release(); }
  } const release{lock};
  return function(*args);
}

}  // namespace torch_xla
