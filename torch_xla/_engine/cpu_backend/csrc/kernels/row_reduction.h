// Row and column reductions of float32 arrays, shared by custom kernels: small ones run on XLA's thread, concurrently
// with other calls; large ones on the threads of its pool.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "ffi_handler.h"
#include "kernels/multiversion.h"
#include "threading/xla_pool.h"

namespace torch_xla::handlers {

constexpr int64_t kMinParallelElements = 1 << 19;  // elements read, below which waking threads takes longer
constexpr int64_t kColumnsPerTile = 1 << 10;       // column sums that stay in the cache while rows are added
constexpr int64_t kRowsPerTile = 64;               // rows summed in float32 before the partial sums are combined

// Runs `work(begin, end)` over partitions of [0, count), in parallel if `numbers`, the elements read in total, is
// large.
inline void parallel_if_large(xla::ffi::ThreadPool& pool, int64_t count, int64_t numbers,
                              const std::function<void(int64_t begin, int64_t end)>& work) {
  if (numbers < kMinParallelElements) {
    work(0, count);
  } else {
    parallel_for_on_pool(pool, count, work);
  }
}

inline float* memory(xla::ffi::AnyBuffer buffer) { return static_cast<float*>(buffer.untyped_data()); }

// Returns the sum of value(0) to value(n - 1), with separate sums per lane and per chunk: accurate, and vectorizable.
template <typename Value>
__attribute__((always_inline)) inline float sum_of(int64_t n, const Value& value) {
  constexpr int64_t kLanes = 32, kChunk = 1 << 12;
  double total = 0;
  for (int64_t first = 0; first < n; first += kChunk) {
    const int64_t end = std::min(n, first + kChunk);
    float lanes[kLanes] = {}, rest = 0;
    int64_t i = first;
    for (; i + kLanes <= end; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        lanes[lane] += value(i + lane);
      }
    }
    for (; i < end; ++i) {
      rest += value(i);
    }
    for (const float lane : lanes) {
      rest += lane;
    }
    total += rest;
  }
  return static_cast<float>(total);
}

// to[i] = the sum of from[partition * n + i] over all partitions.
inline void add_partial_sums(int64_t partitions, int64_t n, const float* from, float* to) {
  for (int64_t i = 0; i < n; ++i) {
    double total = 0;
    for (int64_t partition = 0; partition < partitions; ++partition) {
      total += from[partition * n + i];
    }
    to[i] = static_cast<float>(total);
  }
}

}  // namespace torch_xla::handlers
