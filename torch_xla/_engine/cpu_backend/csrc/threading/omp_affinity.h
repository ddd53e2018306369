// Pins the threads of an OpenMP team to cores, one each, while the cores are not contended (threading/pinned_thread.h):
// each worker to a core, the owner to the remaining one.
//
// Threads that OpenMP starts later inherit the owner's affinity. So the owner is pinned only if there is one worker,
// and no thread starts later; otherwise it is moved back to its core before each kernel.
#pragma once

#include "threading/pinned_thread.h"

namespace torch_xla::handlers {

// Returns whether the calling thread's team has one thread for each core that the process may use, and more than one.
bool owns_all_cores();

// Belongs to the thread that owns the team, which alone calls it.
class OmpAffinity {
 public:
  // Updates the pinning. Call it when the team size changes, and periodically.
  void update();
  // Moves the owner back to its core. Call it before each kernel; costs one sched_getcpu().
  void return_owner() const;

 private:
  bool place_workers() const;  // returns whether a worker was starved
  void pin_owner(bool pinned);

  bool pinned_ = false;
  bool owner_pinned_ = false;
  Backoff backoff_;  // in calls of update()
};

}  // namespace torch_xla::handlers
