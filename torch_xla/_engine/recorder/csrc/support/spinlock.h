// A lock for critical sections of a few instructions, acquired several times per recorded op: half the cost of an
// uncontended std::mutex. Do not block, take the GIL or allocate large memory while holding it.
#pragma once

#include <atomic>
#include <thread>

namespace torch_xla {

class SpinLock {
 public:
  void lock() {
    int tries = 0;
    while (flag_.exchange(true, std::memory_order_acquire)) {
      // The holder may have been preempted: yield this core to it.
      if (++tries > 64) {
        std::this_thread::yield();
      }
    }
  }
  void unlock() { flag_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> flag_{false};
};

}  // namespace torch_xla
