#include "team.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <thread>

#include "cores.h"

namespace torch_xla::handlers {
namespace {

// How long a thread looks again and again before it sleeps, giving way to whoever wants its core: a program's handlers
// follow each other closely, and waking a thread takes as long as a small kernel.
constexpr std::chrono::microseconds kAwake(500);

constexpr uint32_t kOften = 64;  // kernels, after which the cores are looked at again

template <typename Done>
void look_for(const Done& done) {
  const auto end = std::chrono::steady_clock::now() + kAwake;
  while (!done() && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
}

struct Task {
  const std::function<void()>* work;
  std::exception_ptr error;
  std::atomic<bool> done{false};
};

class Team {
 public:
  void run(Task& task) {
    {
      const std::lock_guard lock(mutex_);
      if (!started_) {
        std::thread([this] { serve(); }).detach();
        started_ = true;
      }
      tasks_.push_back(&task);
      waiting_.store(true, std::memory_order_relaxed);
    }
    wake_.notify_one();
    look_for([&] { return task.done.load(std::memory_order_acquire); });
    task.done.wait(false, std::memory_order_acquire);
  }

  std::atomic<int> threads{0};  // 0: as torch has it

 private:
  [[noreturn]] void serve() {
    const c10::InferenceMode no_autograd;
    for (uint32_t served = 0;; ++served) {
      bool slept = false;
      Task* task = next(slept);
      try {
        if (take_threads() || slept || served % kOften == 0) {
          cores_.spread();
        }
        cores_.return_owner();
        (*task->work)();
      } catch (...) {
        task->error = std::current_exception();
      }
      task->done.store(true, std::memory_order_release);
      task->done.notify_one();
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

  Task* next(bool& slept) {
    look_for([this] { return waiting_.load(std::memory_order_relaxed); });
    std::unique_lock lock(mutex_);
    slept = tasks_.empty();
    wake_.wait(lock, [this] { return !tasks_.empty(); });
    Task* task = tasks_.front();
    tasks_.pop_front();
    waiting_.store(!tasks_.empty(), std::memory_order_relaxed);
    return task;
  }

  Cores cores_;  // of `serve`
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Task*> tasks_;
  std::atomic<bool> waiting_{false};  // whether there are tasks, for who does not hold the lock
  bool started_ = false;
};

// Never destroyed: its thread may wait for work while the process ends.
Team& team() {
  static auto* const instance = [] {
    auto* made = new Team;
    // The child of a fork has none of its parent's threads, and no program that one of them runs for.
    pthread_atfork(nullptr, nullptr, [] { new (&team()) Team; });
    return made;
  }();
  return *instance;
}

}  // namespace

void on_team(const std::function<void()>& work) {
  Task task{&work, nullptr};
  team().run(task);
  if (task.error) {
    std::rethrow_exception(task.error);
  }
}

}  // namespace torch_xla::handlers

void torch_xla_set_threads(int count) { torch_xla::handlers::team().threads.store(count, std::memory_order_relaxed); }
