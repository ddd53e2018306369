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

// The execution lock of one device: free -> owned by a thread -> free. Not to be taken twice by one thread.
class ExecutionLock {
 public:
  // Waits without the GIL. Ctrl-C ends the waiting.
  void acquire() {
    if (owner_.load(std::memory_order_relaxed) == std::this_thread::get_id()) {
      const py::object line = py::module_::import("torch_xla._engine.base.user_frames").attr("user_line")();
      throw std::runtime_error(
          "torch_xla: a value was asked for while a graph of the same device was being built on this thread, by " +
          line.cast<std::string>() + "; a __del__ method or signal handler must not read xla tensors");
    }
    while (!mutex_.try_lock_for(std::chrono::nanoseconds(0))) {
      bool taken = false;
      {
        py::gil_scoped_release release;
        taken = mutex_.try_lock_for(std::chrono::milliseconds(50));
      }
      if (taken) {
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

// Not held across a fork, as whoever forks need not wait for a step to end. A child of a process whose other threads
// were in the middle of one would wait for them forever.
const bool made_anew = [] {
  const auto nothing = [](void*) {};
  at_fork({execution_locks(), nothing, nothing, [](void* locks) {
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
