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
  std::atomic<bool> crowded{false};
  run_on_all_threads([&] {
    static thread_local PinnedThread worker(gettid());
    if (worker.is_starved()) {
      crowded = true;
    }
    if (const int number = at::get_thread_num(); number > 0) {
      worker.place(number, bound_);
    }
  });
  return crowded;
}

void OmpAffinity::update() {
  if (!rest_.over()) {
    return;
  }
  const bool was_bound = bound_;
  bound_ = owns_all_cores();
  if (!bound_ && !was_bound) {
    return;
  }
  if (place_workers() && bound_) {
    rest_.begin();
    bound_ = false;
    place_workers();
  } else {
    rest_.not_needed();
  }
  bind_owner(bound_ && allowed_cores().size() == 2);
}

void OmpAffinity::bind_owner(bool bound) {
  if (bound && !owner_bound_) {
    pin_current_thread(allowed_cores()[0]);
  } else if (!bound && owner_bound_) {
    unpin_current_thread();
  }
  owner_bound_ = bound;
}

void OmpAffinity::return_owner() const {
  if (bound_ && !owner_bound_ && sched_getcpu() != allowed_cores()[0]) {
    pin_current_thread(allowed_cores()[0]);
    unpin_current_thread();
  }
}

}  // namespace torch_xla::handlers

#endif
