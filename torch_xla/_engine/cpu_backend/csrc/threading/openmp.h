// Access to the OpenMP runtime that torch is linked with, and to the calling thread's team.
#pragma once

#include <cstdint>
#include <functional>

namespace torch_xla::handlers {

// Runs `work(begin, end)` over partitions of [0, count) on the calling thread's team, including itself.
// (at::parallel_for is a serial loop in a library that is compiled without OpenMP.)
void parallel_for(int64_t count, const std::function<void(int64_t begin, int64_t end)>& work);

// Makes the calling thread's team sleep when a loop ends instead of spinning, as OMP_WAIT_POLICY=passive does, which has
// no effect once torch is imported.
//
// LLVM's OpenMP has a function for it. GNU's OpenMP decides at each wait: it spins unless the process has more threads in
// teams than cores. This starts a thread that owns a team of more threads than cores, which sleeps until the process
// ends, so that all teams of the process sleep. The child of a fork has none of these threads, but GNU's OpenMP still
// counts them. If the process may not start more threads, teams spin.
void sleep_between_loops();

}  // namespace torch_xla::handlers
