// Keeps cores awake between the kernels of a program.
//
// The OpenMP team sleeps between two kernels, and XLA's threads sleep while one runs. An idle core halts, and waking it
// takes as long as a small kernel, especially in a virtual machine. So for a short time after each kernel one thread
// per core keeps it busy.
//
// Why SCHED_IDLE: at this lowest priority Linux treats the core as idle, so it wakes other threads there immediately,
// and any other thread preempts it. (OpenMP's active wait policy keeps threads busy for longer, at normal priority.)
// The threads count towards a cgroup CPU quota like any others: with a quota below the number of cores, set
// OMP_WAIT_POLICY=passive.
//
//  No thread is started if
//  - OMP_WAIT_POLICY is passive, or the user controls affinity (threading/omp_affinity.h),
//  - the team has fewer threads than the process has cores: the other cores may be meant to halt,
//  - the system denies the priority, or is not Linux.
#pragma once

#include <atomic>
#include <cstdint>

namespace torch_xla::handlers {

// Belongs to the kernel thread, which alone calls it. Never destroyed, because its threads never end.
class CoreKeepAwake {
 public:
  // Starts the threads, once. Call it when the team size changes, and periodically.
  void start();
  // Keeps the cores busy for another period. Call it after each kernel.
  void extend();

 private:
  [[noreturn]] void run();

  bool started_ = false;
  std::atomic<int64_t> until_{0};  // ns of the steady clock
  std::atomic<uint32_t> extended_{0}, sleeping_{0};
};

}  // namespace torch_xla::handlers
