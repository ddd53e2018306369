#include "threading/kernel_thread.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <pthread.h>

#include <atomic>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <thread>

#include "threading/core_keep_awake.h"
#include "threading/omp_affinity.h"
#include "threading/openmp.h"
#include "threading/xla_pool_affinity.h"

namespace torch_xla::handlers {
namespace {

constexpr uint32_t kOften = 64;  // kernels, after which the cores are looked at again

struct Task {
  const std::function<void()>* work;
  std::exception_ptr error;
  std::atomic<int> done{0};  // a number, as a thread can sleep on it without help
};

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

  std::atomic<int> threads{0};  // 0: as torch has it

 private:
  [[noreturn]] void serve() {
    const c10::InferenceMode no_autograd;
    unpin_current_thread();  // the thread of XLA's that started this one may be bound
    for (uint32_t served = 0;; ++served) {
      Task* task = next();
      try {
        if (take_threads() || served % kOften == 0) {
          cores_.update();
          awake_.start();
        }
        cores_.return_owner();
        (*task->work)();
      } catch (...) {
        task->error = std::current_exception();
      }
      task->done.store(1, std::memory_order_release);
      task->done.notify_one();
      awake_.extend();
    }
  }

  // Whether the team has another number of threads than it had.
  bool take_threads() const {
    const int wanted = threads.load(std::memory_order_relaxed);
    if (wanted <= 0 || wanted == at::get_num_threads()) {
      return false;
    }
    at::set_num_threads(wanted);
    return true;
  }

  // The whole team sleeps until there is one.
  Task* next() {
    for (;;) {
      const uint32_t seen = pushed_.load(std::memory_order_acquire);
      if (Task* task = first()) {
        return task;
      }
      run_on_all_threads([&] { pushed_.wait(seen, std::memory_order_acquire); });
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

  OmpAffinity cores_;    // of `serve`
  CoreKeepAwake awake_;  // of `serve`
  std::mutex mutex_;
  std::deque<Task*> tasks_;
  std::atomic<uint32_t> pushed_{0};  // tasks, ever
  bool started_ = false;
};

// Never destroyed: its thread may wait for work while the process ends.
KernelThread& team() {
  static auto* const instance = [] {
    auto* made = new KernelThread;
    // The child of a fork has none of its parent's threads, and no program that one of them runs for.
    pthread_atfork(nullptr, nullptr, [] { new (&team()) KernelThread; });
    return made;
  }();
  return *instance;
}

}  // namespace

void run_on_kernel_thread(const std::function<void()>& work) {
  Task task{&work, nullptr};
  team().run(task);
  if (task.error) {
    std::rethrow_exception(task.error);
  }
}

}  // namespace torch_xla::handlers

void torch_xla_set_threads(int count, bool calls_python) {
  torch_xla::handlers::XlaPoolAffinity::of_process().update(calls_python ? 0 : count);
  torch_xla::handlers::release_omp_team();
  torch_xla::handlers::team().threads.store(count, std::memory_order_relaxed);
}
