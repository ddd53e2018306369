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

constexpr std::chrono::nanoseconds kPeriod = std::chrono::milliseconds(1);  // most kernels of a step follow sooner
constexpr int kPausesPerCheck = 50;                                         // between two reads of the clock

int64_t now() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

bool is_wait_policy_passive() {
  const char* policy = std::getenv("OMP_WAIT_POLICY");
  return policy != nullptr && (std::string_view(policy) == "passive" || std::string_view(policy) == "PASSIVE");
}

// Yields to the other hardware thread of this core.
void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

bool set_lowest_priority() {
  const sched_param none{};
  return sched_setscheduler(0, SCHED_IDLE, &none) == 0;
}

}  // namespace

void CoreKeepAwake::start() {
  if (started_ || is_wait_policy_passive() || !owns_all_cores()) {
    return;
  }
  started_ = true;
  try {
    for (const int core : allowed_cores()) {
      std::thread([this, core] {
        if (set_lowest_priority()) {
          pin_current_thread(core);
          run();
        }
      }).detach();
    }
  } catch (const std::system_error&) {  // no more threads for this user: the other cores may halt
  }
}

void CoreKeepAwake::extend() {
  until_ = now() + kPeriod.count();
  if (sleeping_ > 0) {
    ++extended_;
    extended_.notify_all();
  }
}

void CoreKeepAwake::run() {
  for (;;) {
    while (now() < until_) {
      for (int i = 0; i < kPausesPerCheck; ++i) {
        pause_core();
      }
    }
    const uint32_t seen = extended_;
    ++sleeping_;
    if (now() >= until_) {
      extended_.wait(seen);
    }
    --sleeping_;
  }
}

}  // namespace torch_xla::handlers

#endif
