// Access to the OpenMP runtime that torch is linked with, and to the calling thread's team.
#pragma once

#include <cstdint>
#include <functional>

namespace torch_xla::handlers {

// Runs `work(begin, end)` over partitions of [0, count) on the calling thread's team, including itself.
// (at::parallel_for is a serial loop in a library that is compiled without OpenMP.)
void parallel_for(int64_t count, const std::function<void(int64_t begin, int64_t end)>& work);

// Runs `work` on each thread of the calling thread's team, including itself, and waits for all.
void run_on_all_threads(const std::function<void()>& work);

// Makes all teams of GNU's OpenMP in this process sleep when a loop ends instead of spinning, as OMP_WAIT_POLICY=passive
// does, which has no effect once torch is imported.
//
// GNU's OpenMP decides at each wait: it spins unless the process has more threads in teams than cores. This starts a
// thread that owns a team of more threads than cores, which sleeps until the process ends. It has no effect on other
// OpenMP runtimes. The child of a fork has none of these threads, but GNU's OpenMP still counts them. Returns false if
// teams still spin: another OpenMP, or the process may not start more threads.
bool sleep_between_loops();

// Releases the calling thread's team; OpenMP recreates it at the next parallel loop. Does nothing inside a loop, or if
// OpenMP is older than 5.0. (LLVM's OpenMP makes its threads sleep instead.)
void release_omp_team();

}  // namespace torch_xla::handlers
