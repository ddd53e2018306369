#include "threading/kernel_thread.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <thread>

#include "threading/openmp.h"
#include "threading/scheduling_times.h"
#include "threading/wait_policy.h"

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

  std::atomic<int> threads{0};              // 0: torch's default
  std::atomic<int64_t> passive_kernels{0};  // since the last launch

 private:
  [[noreturn]] void serve() {
    name_calling_thread();
    const c10::InferenceMode no_autograd;
    const RunQueueTime queue;
    for (;;) {
      Task* task = next();
      try {
        update_thread_count();
        run_work(*task->work, queue);
      } catch (...) {
        task->error = std::current_exception();
      }
      task->done.store(1, std::memory_order_release);
      task->done.notify_one();
    }
  }

  void run_work(const std::function<void()>& work, const RunQueueTime& queue) {
    if (is_policy_set_) {
      work();
      return;
    }
    if (!policy_.is_passive()) {
      passive_.reset();
    } else if (!passive_) {
      passive_.emplace();
    }
    passive_kernels.fetch_add(passive_ ? 1 : 0, std::memory_order_relaxed);
    // The policy uses the time in the queue only while it is active: a pause costs no system calls.
    const auto read_queue = [&] { return passive_ ? std::chrono::nanoseconds(0) : queue.read(); };
    const auto waited = read_queue();
    const auto start = std::chrono::steady_clock::now();
    work();
    policy_.add(std::chrono::steady_clock::now() - start, read_queue() - waited);
  }

  void update_thread_count() const {
    const int requested = threads.load(std::memory_order_relaxed);
    if (requested > 0 && requested != at::get_num_threads()) {
      at::set_num_threads(requested);
    }
  }

  // Waits for a task; the whole team sleeps meanwhile.
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

  std::mutex mutex_;
  std::deque<Task*> tasks_;
  std::atomic<uint32_t> pushed_{0};  // number of tasks ever pushed
  bool started_ = false;
  // By the user, in the environment.
  const bool is_policy_set_ = std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr;
  // Of the kernel thread.
  WaitPolicy policy_;
  std::optional<PassiveWaiting> passive_;
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

}  // namespace torch_xla::handlers

int64_t torch_xla_set_threads(int count, bool release_team) {
  if (release_team) {
    torch_xla::handlers::release_omp_team();
  }
  auto& thread = torch_xla::handlers::kernel_thread();
  thread.threads.store(count, std::memory_order_relaxed);
  return thread.passive_kernels.exchange(0, std::memory_order_relaxed);
}
