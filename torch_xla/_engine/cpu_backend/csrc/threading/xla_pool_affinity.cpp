#include "threading/xla_pool_affinity.h"

#ifndef __linux__

namespace torch_xla::handlers {

XlaPoolAffinity& XlaPoolAffinity::of_process() {
  static XlaPoolAffinity pool;
  return pool;
}

void XlaPoolAffinity::discover_threads(xla::ffi::ThreadPool&) {}
void XlaPoolAffinity::update(int) {}

}  // namespace torch_xla::handlers

#else

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <new>

namespace torch_xla::handlers {
namespace {

constexpr std::chrono::nanoseconds kBetweenLooks = std::chrono::milliseconds(250);

int64_t clock_now() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

thread_local bool scheduling = false;  // a task that runs meanwhile is run by the thread that schedules it

}  // namespace

XlaPoolAffinity& XlaPoolAffinity::of_process() {
  static auto* const pool = [] {
    auto* made = new XlaPoolAffinity;
    pthread_atfork(nullptr, nullptr, [] { new (&of_process()) XlaPoolAffinity; });
    return made;
  }();
  return *pool;
}

void XlaPoolAffinity::discover_threads(xla::ffi::ThreadPool& threads) {
  if (complete_.load(std::memory_order_relaxed)) {
    return;
  }
  const int64_t count = threads.num_threads();
  if (static_cast<size_t>(count) != allowed_cores().size()) {
    complete_ = true;  // none is ever bound
    return;
  }
  scheduling = true;
  for (int64_t i = 0; i < count; ++i) {
    threads.Schedule([] { of_process().join(); });
  }
  scheduling = false;
}

void XlaPoolAffinity::join() {
  static thread_local bool known = false;
  if (known || scheduling) {
    return;
  }
  known = true;
  const std::lock_guard lock(mutex_);
  threads_.emplace_back(gettid());
  if (threads_.size() == allowed_cores().size()) {
    complete_ = true;
    next_look_ = 0;
  }
}

void XlaPoolAffinity::update(int wanted) {
  const int64_t time = clock_now();
  if (time < next_look_ && wanted > 0) {
    return;
  }
  next_look_ = time + kBetweenLooks.count();
  const std::lock_guard lock(mutex_);
  const size_t cores = allowed_cores().size();
  const bool bind = cores > 1 && threads_.size() == cores && static_cast<size_t>(wanted) == cores;
  if ((!bind && !bound_) || (bind && !rest_.over())) {
    return;
  }
  if (place(bind) && bind) {
    rest_.begin();
    place(false);
  } else {
    rest_.not_needed();
  }
}

bool XlaPoolAffinity::place(bool bound) {
  bool crowded = false;
  for (size_t i = 0; i < threads_.size(); ++i) {
    crowded |= threads_[i].is_starved();
    threads_[i].place(i, bound);
  }
  bound_ = bound;
  return crowded;
}

}  // namespace torch_xla::handlers

#endif
