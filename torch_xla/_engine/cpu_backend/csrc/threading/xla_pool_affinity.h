// Cores for XLA's threads, one each, while they are its own (threading/pinned_thread.h).
//
// XLA's client for the CPU has a pool of as many threads as cores, which all its programs share. After a pause of the
// script Linux has often started two of them on one core, where they stayed for the whole of a step.
//
// Who they are they say themselves, in tasks that a handler gives to the pool. As long as not all have, and where the
// pool is larger than the machine or the user wants fewer threads than cores, all go where they can; and for a program
// that calls Python, as what it calls may start threads and processes, which inherit where they may run.
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
  // That of this process; never destroyed, as XLA's threads may still run at the end. A fork has its own, without any.
  static XlaPoolAffinity& of_process();

  // By each handler, before it computes: asks the pool's threads who they are, until all have said so.
  void discover_threads(xla::ffi::ThreadPool& threads);
  // By whoever starts a program, with the number of threads that it wants: looks at the threads, now and then. 0: lets
  // them go at once.
  void update(int wanted);

 private:
  void join();             // a thread of the pool
  bool place(bool bound);  // whether one found its core crowded

  std::mutex mutex_;  // of all below but the atomics
  std::vector<PinnedThread> threads_;
  bool bound_ = false;
  Backoff rest_;
  std::atomic<bool> complete_{false};
  std::atomic<int64_t> next_look_{0};  // ns of the steady clock
};

}  // namespace torch_xla::handlers
