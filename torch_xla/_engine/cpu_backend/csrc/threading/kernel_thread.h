// The kernel thread: the only thread that runs kernels with OpenMP loops, which are those of ATen, oneDNN and MKL.
//
// OpenMP has a thread team for each thread that runs a parallel loop. XLA calls handlers on any thread of its pools,
// which would create one machine-sized team per XLA thread. So these kernels run on one thread, which owns one team,
// one after the other, while XLA's thread sleeps. Other loops run on XLA's threads (xla_pool.h).
//
// OpenMP lets the threads of a team spin for milliseconds when a loop ends. That takes cores from XLA's threads, Python
// and other processes, and a spinning team waits whole time slices for a thread that another process preempts. Here they
// sleep (sleep_between_loops), unless the user has configured how OpenMP waits (OMP_WAIT_POLICY, GOMP_SPINCOUNT,
// KMP_BLOCKTIME): then they wait as configured, between kernels as well.
#pragma once

#include <cstdint>
#include <functional>

namespace torch_xla::handlers {

// Runs `work` on the kernel thread and waits for it. Throws what `work` throws.
void run_on_kernel_thread(const std::function<void()>& work);

// Returns the number of threads that kernels may use, as set by torch_xla_set_threads.
int kernel_thread_count();

}  // namespace torch_xla::handlers

// Sets the number of threads. The thread that starts a program calls this before the launch.
extern "C" __attribute__((visibility("default"))) void torch_xla_set_threads(int count);
