// The one thread on which handlers run.
//
// OpenMP keeps a team of threads for each thread that asks for one. XLA calls handlers on any thread of its pools: as
// many teams as XLA has threads, each as large as the machine. So all handlers of the process run on one thread, which
// owns one team, one after the other; XLA's thread waits meanwhile.
#pragma once

#include <functional>

namespace torch_xla::handlers {

// Runs `work` on the team's thread and returns when it is done. Throws what `work` throws.
void on_team(const std::function<void()>& work);

}  // namespace torch_xla::handlers

// How many threads the team has from now on: what torch.get_num_threads() says to the thread that starts a program.
extern "C" __attribute__((visibility("default"))) void torch_xla_set_threads(int count);
