// Cores for the threads of an OpenMP team, one each.
//
// Linux often has a thread run on the core of the one that woke it while another is idle, until it balances its queues:
// longer than many a program takes, in which kernels of two threads take twice as long. (Above all in virtual machines,
// to which a core that sleeps looks taken.) So the team's threads are bound to cores. But where others use the cores as
// well, a thread that may not go elsewhere keeps the whole team waiting.
//
//   OMP_PROC_BIND, GOMP_CPU_AFFINITY or KMP_AFFINITY is set    the user decides: nothing is done
//   the team has fewer threads than the process has cores      all anywhere: there are others to share the cores with
//   as many: bound      each worker on its core, the owner on the one that is left;
//                       -> free, when a worker waited for its core more than half as long as it ran
//   as many: free       all anywhere; -> bound, after a while, which doubles each time that it was too short
//
// Threads that OpenMP starts later inherit what the owner may use. So it is bound only where there is but one worker,
// and none is started later; else it is moved back to its core before each kernel.
#pragma once

#include <vector>

namespace torch_xla::handlers {

// The numbers of the cores that the process may use; none where the user decides.
const std::vector<int>& allowed_cores();

// Whether the calling thread's team has a thread for each of them, and there are several.
bool one_each();

// From now on the calling thread runs on that core alone, unless the kernel refuses.
void go_to(int core);

// Belongs to the thread whose team it is, which alone calls it. Off Linux it does nothing.
class Cores {
 public:
  // To be called when the team has another number of threads, and now and then.
  void spread();
  // Before each kernel: costs a look at where the owner runs.
  void return_owner() const;

 private:
  bool place_workers() const;  // whether one found its core crowded
  void bind_owner(bool bound);

  bool bound_ = false;
  bool owner_bound_ = false;
  int rest_ = 0;       // calls of spread() until the workers are bound again
  int next_rest_ = 0;  // what it will be after the next time; 0 when nobody was in the way for twice as long
  int calm_ = 0;       // calls of spread() since somebody was
};

}  // namespace torch_xla::handlers
