#include "threading/xla_pool.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>

#include "threading/kernel_thread.h"

namespace torch_xla::handlers {
namespace {

constexpr int64_t kPartitionsPerThread = 4;  // so that a thread that is preempted delays one partition only

// One loop. The caller and the scheduled helpers own it together: a helper may start after the loop has ended, when
// `work_` no longer exists, and reads `next_` only.
class PoolLoop {
 public:
  PoolLoop(int64_t count, int64_t partitions, const std::function<void(int64_t, int64_t)>& work)
      : count_(count), partitions_(partitions), work_(work) {}

  void run_partitions() {
    for (int64_t i = next_.fetch_add(1); i < partitions_; i = next_.fetch_add(1)) {
      try {
        work_(i * count_ / partitions_, (i + 1) * count_ / partitions_);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        error_ = error_ ? error_ : std::current_exception();
      }
      if (finished_.fetch_add(1) + 1 == partitions_) {
        finished_.notify_all();
      }
    }
  }

  void wait() {
    for (int now = finished_.load(); now < partitions_; now = finished_.load()) {
      finished_.wait(now);
    }
    if (error_) {
      std::rethrow_exception(error_);
    }
  }

 private:
  const int64_t count_, partitions_;
  const std::function<void(int64_t, int64_t)>& work_;
  std::atomic<int64_t> next_{0};
  std::atomic<int> finished_{0};  // an int, so that a thread can wait for it by futex
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace

void parallel_for_on_pool(xla::ffi::ThreadPool& pool, int64_t count,
                          const std::function<void(int64_t, int64_t)>& work) {
  const int64_t threads = std::min<int64_t>(pool.num_threads(), kernel_thread_count());
  const int64_t partitions = std::min(count, threads * kPartitionsPerThread);
  if (threads <= 1 || partitions <= 1) {
    work(0, count);
    return;
  }
  const auto loop = std::make_shared<PoolLoop>(count, partitions, work);
  for (int64_t i = 1; i < std::min(threads, partitions); ++i) {
    pool.Schedule([loop] { loop->run_partitions(); });
  }
  loop->run_partitions();
  loop->wait();
}

}  // namespace torch_xla::handlers
