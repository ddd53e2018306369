#include "cores.h"

#ifndef __linux__

namespace torch_xla::handlers {

bool one_each() { return false; }
void Cores::spread() {}
void Cores::return_owner() const {}

}  // namespace torch_xla::handlers

#else

#include <ATen/Parallel.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>

#include "openmp.h"

namespace torch_xla::handlers {

bool one_each() {
  const size_t cores = allowed_cores().size();
  return cores > 1 && static_cast<size_t>(at::get_num_threads()) == cores;
}

bool Cores::place_workers() const {
  std::atomic<bool> crowded{false};
  on_each_thread([&] {
    static thread_local BoundThread worker(gettid());
    if (worker.crowded()) {
      crowded = true;
    }
    if (const int number = at::get_thread_num(); number > 0) {
      worker.place(number, bound_);
    }
  });
  return crowded;
}

void Cores::spread() {
  if (!rest_.over()) {
    return;
  }
  const bool was_bound = bound_;
  bound_ = one_each();
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

void Cores::bind_owner(bool bound) {
  if (bound && !owner_bound_) {
    go_to(allowed_cores()[0]);
  } else if (!bound && owner_bound_) {
    go_anywhere();
  }
  owner_bound_ = bound;
}

void Cores::return_owner() const {
  if (bound_ && !owner_bound_ && sched_getcpu() != allowed_cores()[0]) {
    go_to(allowed_cores()[0]);
    go_anywhere();
  }
}

}  // namespace torch_xla::handlers

#endif
