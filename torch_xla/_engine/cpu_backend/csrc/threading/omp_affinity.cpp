#include "threading/omp_affinity.h"

#ifndef __linux__

namespace torch_xla::handlers {

bool owns_all_cores() { return false; }
void OmpAffinity::update() {}
void OmpAffinity::return_owner() const {}

}  // namespace torch_xla::handlers

#else

#include <ATen/Parallel.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>

#include "threading/openmp.h"

namespace torch_xla::handlers {

bool owns_all_cores() {
  const size_t cores = allowed_cores().size();
  return cores > 1 && static_cast<size_t>(at::get_num_threads()) == cores;
}

bool OmpAffinity::place_workers() const {
  std::atomic<bool> starved{false};
  run_on_all_threads([&] {
    static thread_local PinnedThread worker(gettid());
    if (worker.is_starved()) {
      starved = true;
    }
    if (const int number = at::get_thread_num(); number > 0) {
      worker.place(number, pinned_);
    }
  });
  return starved;
}

void OmpAffinity::update() {
  if (!backoff_.is_over()) {
    return;
  }
  const bool was_pinned = pinned_;
  pinned_ = owns_all_cores();
  if (!pinned_ && !was_pinned) {
    return;
  }
  if (place_workers() && pinned_) {
    backoff_.start();
    pinned_ = false;
    place_workers();
  } else {
    backoff_.note_calm();
  }
  pin_owner(pinned_ && allowed_cores().size() == 2);
}

void OmpAffinity::pin_owner(bool pinned) {
  if (pinned && !owner_pinned_) {
    pin_current_thread(allowed_cores()[0]);
  } else if (!pinned && owner_pinned_) {
    unpin_current_thread();
  }
  owner_pinned_ = pinned;
}

void OmpAffinity::return_owner() const {
  if (pinned_ && !owner_pinned_ && sched_getcpu() != allowed_cores()[0]) {
    pin_current_thread(allowed_cores()[0]);
    unpin_current_thread();
  }
}

}  // namespace torch_xla::handlers

#endif
