// Access to the OpenMP runtime that torch is linked with, and to the calling thread's team.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

namespace torch_xla::handlers {

// Runs `work(begin, end)` over partitions of [0, count) on the calling thread's team, including itself.
// (at::parallel_for is a serial loop in a library that is compiled without OpenMP.)
void parallel_for(int64_t count, const std::function<void(int64_t begin, int64_t end)>& work);

// Runs `work` on each thread of the calling thread's team, including itself, and waits for all.
void run_on_all_threads(const std::function<void()>& work);

// While it exists, all teams of GNU's OpenMP in this process sleep in their loops instead of spinning.
//
// GNU's OpenMP decides at each wait: it spins unless the process has more threads in teams than cores. This owns a team
// of more threads than cores, which sleeps. It has no effect on other OpenMP runtimes.
class PassiveWaiting {
 public:
  PassiveWaiting();
  ~PassiveWaiting();
  PassiveWaiting(const PassiveWaiting&) = delete;
  PassiveWaiting& operator=(const PassiveWaiting&) = delete;

 private:
  const std::shared_ptr<std::atomic<int>> is_over_;  // shared with the thread that owns the team
};

// Releases the calling thread's team; OpenMP recreates it at the next parallel loop. Does nothing inside a loop, or if
// OpenMP is older than 5.0. (LLVM's OpenMP makes its threads sleep instead.)
void release_omp_team();

}  // namespace torch_xla::handlers
