// The one thread on which handlers run, and its team.
//
// OpenMP keeps a team of threads for each thread that shares a loop. XLA calls handlers on any thread of its pools: as
// many teams as XLA has threads, each as large as the machine. So all handlers of the process run on one thread, which
// owns one team, one after the other; XLA's thread sleeps meanwhile.
//
// Between two loops a team's threads look for the next one at their cores, for milliseconds. That is fast within a
// kernel, which has several loops, and in the way of everybody else between two: XLA's threads, and Python. So
//
//   a kernel runs            its team looks, as OpenMP has it
//   no kernel is to run      the whole team sleeps, in a loop that ends when the next kernel comes
//
// But GNU's OpenMP has all teams sleep between any two loops where a process has more threads in teams than cores:
// waking them took longer than many a loop, and kernels with several twice as long. So whoever starts a program ends
// its own team first (that of Python's main thread, mostly), which is made again when it next shares a loop.
#pragma once

#include <functional>

namespace torch_xla::handlers {

// Runs `work` on the team's thread and returns when it is done. Throws what `work` throws.
void run_on_kernel_thread(const std::function<void()>& work);

}  // namespace torch_xla::handlers

// Called by the thread that starts a program, before it does, with what torch.get_num_threads() says to it: so many
// threads has the team from now on. The caller's own team ends. If the program calls Python, XLA's threads go where
// they can (threading/xla_pool_affinity.h).
extern "C" __attribute__((visibility("default"))) void torch_xla_set_threads(int count, bool calls_python);
