// The kernel thread: the only thread that runs CPU kernels, with its OpenMP team.
//
// OpenMP has a thread team for each thread that runs a parallel loop. XLA calls handlers on any thread of its pools,
// which would create one machine-sized team per XLA thread. So all kernels of the process run on one thread, which owns
// one team, one after the other, while XLA's thread sleeps.
//
// Between two loops the threads of a team spin for milliseconds. That is fast within a kernel with several loops, but
// between kernels it takes cores from XLA's threads and Python:
//
//  a kernel runs              its team spins between loops, as OpenMP is configured
//  no kernel is to run        the whole team sleeps, in a loop that ends when the next kernel arrives
//  the machine is loaded      its team sleeps between loops too (see wait_policy.h)
//
// GNU's OpenMP makes all teams sleep between loops if a process has more threads in teams than cores: waking them took
// longer than many loops, and made kernels with several loops twice as slow. So the thread that starts a program first
// releases its own team (mostly that of Python's main thread), which OpenMP recreates when needed.
#pragma once

#include <cstdint>
#include <functional>

namespace torch_xla::handlers {

// Runs `work` on the kernel thread and waits for it. Throws what `work` throws.
void run_on_kernel_thread(const std::function<void()>& work);

}  // namespace torch_xla::handlers

// Sets the team size to `count`, and releases the caller's OpenMP team if `release_team`: not a team that stayed in the
// parent of this process, for whose threads OpenMP would wait. The thread that starts a program calls this before the
// launch. Returns how many kernels since the last call had a team that sleeps between loops.
extern "C" __attribute__((visibility("default"))) int64_t torch_xla_set_threads(int count, bool release_team);
