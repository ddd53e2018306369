// A lock for critical sections of a few instructions, taken several times per recorded op: half the cost of std::mutex
// when nobody else wants it. Nothing that could block, allocate much or take the GIL may happen under it.
#pragma once

#include <atomic>
#include <thread>

namespace torch_xla {

class SpinLock {
 public:
  void lock() {
    int tries = 0;
    while (flag_.exchange(true, std::memory_order_acquire)) {
      // The holder may have lost its processor: give it ours.
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
