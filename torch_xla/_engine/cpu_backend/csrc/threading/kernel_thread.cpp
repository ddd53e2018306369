#include "threading/kernel_thread.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <thread>

#include "threading/openmp.h"

namespace torch_xla::handlers {
namespace {

struct Task {
  const std::function<void()>* work;
  std::exception_ptr error;
  std::atomic<int> done{0};  // an int, so that a thread can wait for it by futex
};

// For top, perf and debuggers. The threads of its team inherit the name.
void name_calling_thread() {
#ifdef __linux__
  pthread_setname_np(pthread_self(), "xla_cpu_kernels");  // at most 15 characters
#endif
}

class KernelThread {
 public:
  void run(Task& task) {
    {
      const std::lock_guard lock(mutex_);
      if (!started_) {
        std::thread([this] { serve(); }).detach();
        started_ = true;
      }
      tasks_.push_back(&task);
      pushed_.fetch_add(1, std::memory_order_release);
    }
    pushed_.notify_all();
    task.done.wait(0, std::memory_order_acquire);
  }

  std::atomic<int> threads{0};  // 0: torch's default

 private:
  [[noreturn]] void serve() {
    name_calling_thread();
    const c10::InferenceMode no_autograd;
    for (;;) {
      Task* task = next();
      try {
        prepare_team();
        (*task->work)();
      } catch (...) {
        task->error = std::current_exception();
      }
      task->done.store(1, std::memory_order_release);
      task->done.notify_one();
    }
  }

  // A team of one thread has nothing to wait for: no other threads start, such as in the ranks of torchrun.
  void prepare_team() {
    const int requested = threads.load(std::memory_order_relaxed);
    if (requested > 0 && requested != at::get_num_threads()) {
      at::set_num_threads(requested);
    }
    if (!is_waiting_configured_ && at::get_num_threads() > 1) {
      sleep_between_loops();
      is_waiting_configured_ = true;
    }
  }

  Task* next() {
    for (;;) {
      const uint32_t seen = pushed_.load(std::memory_order_acquire);
      if (Task* task = first()) {
        return task;
      }
      pushed_.wait(seen, std::memory_order_acquire);
    }
  }

  Task* first() {
    const std::lock_guard lock(mutex_);
    if (tasks_.empty()) {
      return nullptr;
    }
    Task* task = tasks_.front();
    tasks_.pop_front();
    return task;
  }

  std::mutex mutex_;
  std::deque<Task*> tasks_;
  std::atomic<uint32_t> pushed_{0};  // number of tasks ever pushed
  bool started_ = false;
  // By the user, in the environment, or by sleep_between_loops.
  bool is_waiting_configured_ = std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr ||
                                std::getenv("KMP_BLOCKTIME") != nullptr;
};

// Never destroyed: its thread may wait for work while the process exits.
KernelThread& kernel_thread() {
  static auto* const instance = [] {
    auto* created = new KernelThread;
    // The child of a fork has none of its parent's threads.
    pthread_atfork(nullptr, nullptr, [] { new (&kernel_thread()) KernelThread; });
    return created;
  }();
  return *instance;
}

}  // namespace

void run_on_kernel_thread(const std::function<void()>& work) {
  Task task{&work, nullptr};
  kernel_thread().run(task);
  if (task.error) {
    std::rethrow_exception(task.error);
  }
}

int kernel_thread_count() {
  const int count = kernel_thread().threads.load(std::memory_order_relaxed);
  return count > 0 ? count : at::get_num_threads();
}

}  // namespace torch_xla::handlers

void torch_xla_set_threads(int count) {
  torch_xla::handlers::kernel_thread().threads.store(count, std::memory_order_relaxed);
}
