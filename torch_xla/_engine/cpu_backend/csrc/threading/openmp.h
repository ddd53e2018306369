// The OpenMP that torch was linked with, as this library sees it: the team of threads of whoever calls.
#pragma once

#include <cstdint>
#include <functional>

namespace torch_xla::handlers {

// Runs `work(begin, end)` for parts of 0 to `count`, on the threads of the calling thread's team, itself included.
// (at::parallel_for is a plain loop in a library that is not compiled for OpenMP.)
void parallel_for(int64_t count, const std::function<void(int64_t begin, int64_t end)>& work);

// Runs `work` on each thread of the calling thread's team, itself included, and returns when all are done.
void run_on_all_threads(const std::function<void()>& work);

// The calling thread's team ends, and is made again when it next shares a loop. Does nothing within a loop, or where
// OpenMP is older than 5.0. (LLVM's has its threads sleep instead.)
void release_omp_team();

}  // namespace torch_xla::handlers
