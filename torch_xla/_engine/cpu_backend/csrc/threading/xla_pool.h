// Loops of kernels that are torch_xla's, on the threads of XLA's intra-op pool.
//
// The calling thread of XLA takes part, and other threads of the pool help as soon as they are free:
//
//   partition   untaken -- next_ --> taken by one thread -- finished_ --> finished
//   helper      scheduled --> takes partitions until none is left --> returns
//
// The caller waits only for partitions that a helper has taken. A helper that the pool or the system starts late finds
// none: on a loaded machine the loop takes as long as on one thread, no longer. Unlike an OpenMP team, helpers need no
// additional threads, and several loops may run at the same time.
#pragma once

#include <cstdint>
#include <functional>

#include "xla/ffi/api/ffi.h"

namespace torch_xla::handlers {

// Runs `work(begin, end)` over partitions of [0, count), on at most as many threads as the kernels may use. Rethrows the
// first exception of a partition, after all taken partitions have finished.
void parallel_for_on_pool(xla::ffi::ThreadPool& pool, int64_t count,
                          const std::function<void(int64_t begin, int64_t end)>& work);

}  // namespace torch_xla::handlers
