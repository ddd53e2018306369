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

constexpr std::chrono::nanoseconds kUpdatePeriod = std::chrono::milliseconds(250);

int64_t clock_now() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

thread_local bool is_scheduling = false;  // a task that runs meanwhile runs on the scheduling thread

}  // namespace

XlaPoolAffinity& XlaPoolAffinity::of_process() {
  static auto* const pool = [] {
    auto* created = new XlaPoolAffinity;
    pthread_atfork(nullptr, nullptr, [] { new (&of_process()) XlaPoolAffinity; });
    return created;
  }();
  return *pool;
}

void XlaPoolAffinity::discover_threads(xla::ffi::ThreadPool& threads) {
  if (complete_.load(std::memory_order_relaxed)) {
    return;
  }
  const int64_t count = threads.num_threads();
  if (static_cast<size_t>(count) != allowed_cores().size()) {
    complete_ = true;  // no thread is ever pinned
    return;
  }
  is_scheduling = true;
  for (int64_t i = 0; i < count; ++i) {
    threads.Schedule([] { of_process().join(); });
  }
  is_scheduling = false;
}

void XlaPoolAffinity::join() {
  static thread_local bool known = false;
  if (known || is_scheduling) {
    return;
  }
  known = true;
  const std::lock_guard lock(mutex_);
  threads_.emplace_back(gettid());
  if (threads_.size() == allowed_cores().size()) {
    complete_ = true;
    next_update_ = 0;
  }
}

void XlaPoolAffinity::update(int thread_count) {
  const int64_t time = clock_now();
  if (time < next_update_ && thread_count > 0) {
    return;
  }
  next_update_ = time + kUpdatePeriod.count();
  const std::lock_guard lock(mutex_);
  const size_t cores = allowed_cores().size();
  const bool should_pin = cores > 1 && threads_.size() == cores && static_cast<size_t>(thread_count) == cores;
  if ((!should_pin && !pinned_) || (should_pin && !backoff_.is_over())) {
    return;
  }
  if (place(should_pin) && should_pin) {
    backoff_.start();
    place(false);
  } else {
    backoff_.note_calm();
  }
}

bool XlaPoolAffinity::place(bool pinned) {
  bool starved = false;
  for (size_t i = 0; i < threads_.size(); ++i) {
    starved |= threads_[i].is_starved();
    threads_[i].place(i, pinned);
  }
  pinned_ = pinned;
  return starved;
}

}  // namespace torch_xla::handlers

#endif
