// Cores that do not halt between the kernels of a program.
//
// A team sleeps between two kernels, and so do XLA's threads while one runs. A core with nothing to do halts, and to
// wake it takes as long as a small kernel, in a virtual machine above all. So each core has a thread that keeps it busy
// for a while after each kernel, at the lowest priority (SCHED_IDLE): Linux takes such a core for one that is idle,
// where it starts threads at once, and whoever wants the core has it. OpenMP has its threads look for work longer than
// that, at the priority of all others.
//
//   OMP_WAIT_POLICY is passive, or the user decides about cores (threading/omp_affinity.h)    none
//   the team has fewer threads than the process has cores                    none: others may be meant to halt
//   the system refuses the priority, or is not Linux                         none
#pragma once

#include <atomic>
#include <cstdint>

namespace torch_xla::handlers {

// Belongs to a team, whose owner alone calls it; never destroyed, as its threads never end.
class CoreKeepAwake {
 public:
  // To be called when the team has another number of threads, and now and then: it starts the threads, once.
  void start();
  // After each kernel.
  void extend();

 private:
  [[noreturn]] void keep();

  bool started_ = false;
  std::atomic<int64_t> until_{0};  // ns of the steady clock
  std::atomic<uint32_t> called_{0}, asleep_{0};
};

}  // namespace torch_xla::handlers
