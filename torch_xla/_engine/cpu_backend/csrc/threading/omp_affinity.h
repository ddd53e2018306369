// Cores for the threads of an OpenMP team, one each, while they are its own (threading/pinned_thread.h): each worker on its core,
// the owner on the one that is left.
//
// Threads that OpenMP starts later inherit what the owner may use. So it is bound only where there is but one worker,
// and none is started later; else it is moved back to its core before each kernel.
#pragma once

#include "threading/pinned_thread.h"

namespace torch_xla::handlers {

// Whether the calling thread's team has a thread for each core that the process may use, and there are several.
bool owns_all_cores();

// Belongs to the thread whose team it is, which alone calls it.
class OmpAffinity {
 public:
  // To be called when the team has another number of threads, and now and then.
  void update();
  // Before each kernel: costs a look at where the owner runs.
  void return_owner() const;

 private:
  bool place_workers() const;  // whether one found its core crowded
  void bind_owner(bool bound);

  bool bound_ = false;
  bool owner_bound_ = false;
  Backoff rest_;  // in calls of spread()
};

}  // namespace torch_xla::handlers
