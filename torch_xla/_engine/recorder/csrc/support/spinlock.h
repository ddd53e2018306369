// A lock for critical sections of a few instructions, acquired several times per recorded op: half the cost of an
// uncontended std::mutex. Do not block, take the GIL or allocate large memory while holding it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
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
  void unlock() {
    flag_.store(false, std::memory_order_release);
    pause_under_thread_sanitizer();
  }

 private:
  // ThreadSanitizer reports a race only if no synchronization lies between the two accesses, and almost every call has
  // some. Pausing after some unlocks lets another thread run a whole step between the moment an object becomes visible
  // to it and the accesses that follow.
  static void pause_under_thread_sanitizer() {
#ifdef __SANITIZE_THREAD__
    static thread_local uint32_t unlocks = 0;
    if (++unlocks % 499 == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
#endif
  }

  std::atomic<bool> flag_{false};
};

}  // namespace torch_xla
