// Pins the threads of XLA's CPU thread pool to cores, one each, while the cores are not contended
// (threading/pinned_thread.h).
//
// XLA's CPU client has a pool with one thread per core, shared by all programs. After the script pauses, Linux often
// starts two of them on one core, where they stay for the whole step.
//
// The pool's threads are discovered by tasks that a handler schedules on the pool. Threads stay unpinned until all are
// known, if the pool is larger than the machine, if the user wants fewer threads than cores, and while a program calls
// Python, which may start threads and processes that inherit the affinity.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "threading/pinned_thread.h"
#include "xla/ffi/api/ffi.h"

namespace torch_xla::handlers {

class XlaPoolAffinity {
 public:
  // The instance of this process; never destroyed, because XLA's threads may still run at exit. A forked child gets an
  // empty one.
  static XlaPoolAffinity& of_process();

  // Schedules tasks that register the pool's threads, until all are known. Every handler calls it before it computes.
  void discover_threads(xla::ffi::ThreadPool& threads);
  // Updates the pinning, at most every 250 ms. The thread that starts a program calls it with the number of threads it
  // wants; 0 unpins immediately.
  void update(int thread_count);

 private:
  void join();              // registers the calling thread of the pool
  bool place(bool pinned);  // returns whether a thread was starved

  std::mutex mutex_;  // guards all members below but the atomics
  std::vector<PinnedThread> threads_;
  bool pinned_ = false;
  Backoff backoff_;
  std::atomic<bool> complete_{false};
  std::atomic<int64_t> next_update_{0};  // ns of the steady clock
};

}  // namespace torch_xla::handlers
