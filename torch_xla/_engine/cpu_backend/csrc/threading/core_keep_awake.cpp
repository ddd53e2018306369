#include "threading/core_keep_awake.h"

#ifndef __linux__

namespace torch_xla::handlers {

void CoreKeepAwake::start() {}
void CoreKeepAwake::extend() {}

}  // namespace torch_xla::handlers

#else

#include <sched.h>

#include <chrono>
#include <cstdlib>
#include <string_view>
#include <system_error>
#include <thread>

#include "threading/omp_affinity.h"

namespace torch_xla::handlers {
namespace {

constexpr std::chrono::nanoseconds kLong = std::chrono::milliseconds(1);  // most kernels of a step follow sooner
constexpr int kLooks = 50;                                                // between two looks at the clock

int64_t now() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

bool passive() {
  const char* policy = std::getenv("OMP_WAIT_POLICY");
  return policy != nullptr && (std::string_view(policy) == "passive" || std::string_view(policy) == "PASSIVE");
}

// Leaves the core to a hardware thread beside this one.
void look() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

bool lowest_priority() {
  const sched_param none{};
  return sched_setscheduler(0, SCHED_IDLE, &none) == 0;
}

}  // namespace

void CoreKeepAwake::start() {
  if (started_ || passive() || !owns_all_cores()) {
    return;
  }
  started_ = true;
  try {
    for (const int core : allowed_cores()) {
      std::thread([this, core] {
        if (lowest_priority()) {
          pin_current_thread(core);
          keep();
        }
      }).detach();
    }
  } catch (const std::system_error&) {  // no more threads for this user: the other cores may halt
  }
}

void CoreKeepAwake::extend() {
  until_ = now() + kLong.count();
  if (asleep_ > 0) {
    ++called_;
    called_.notify_all();
  }
}

void CoreKeepAwake::keep() {
  for (;;) {
    while (now() < until_) {
      for (int i = 0; i < kLooks; ++i) {
        look();
      }
    }
    const uint32_t seen = called_;
    ++asleep_;
    if (now() >= until_) {
      called_.wait(seen);
    }
    --asleep_;
  }
}

}  // namespace torch_xla::handlers

#endif
