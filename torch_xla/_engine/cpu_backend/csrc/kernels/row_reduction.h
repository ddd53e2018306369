// Sums over rows and columns of float32 arrays, for handlers of their own: small ones run on XLA's thread, where calls
// run beside each other; large ones on the team.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "ffi_handler.h"
#include "kernels/multiversion.h"
#include "threading/kernel_thread.h"
#include "threading/openmp.h"

namespace torch_xla::handlers {

constexpr int64_t kEnoughForATeam = 1 << 19;  // numbers that are read, which a thread has done before others wake up
constexpr int64_t kColumnsOfPart = 1 << 10;   // whose sums stay in the cache while rows are added to them
constexpr int64_t kRowsOfPart = 64;           // whose sums over columns are added up before those of others

// Runs `work(begin, end)` for parts of 0 to `count`; `numbers`: those that all of it reads.
inline void parallel_if_large(int64_t count, int64_t numbers,
                              const std::function<void(int64_t begin, int64_t end)>& work) {
  if (numbers < kEnoughForATeam) {
    work(0, count);
  } else {
    run_on_kernel_thread([&] { parallel_for(count, work); });
  }
}

inline float* memory(xla::ffi::AnyBuffer buffer) { return static_cast<float*>(buffer.untyped_data()); }

// The sum of value(0) to value(n - 1). Each of many lanes has a sum of its own, and so has each chunk: it loses few
// digits, and vectorizes.
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

// to[i] = the sum of from[part * n + i] over all parts.
inline void add_parts(int64_t parts, int64_t n, const float* from, float* to) {
  for (int64_t i = 0; i < n; ++i) {
    double total = 0;
    for (int64_t part = 0; part < parts; ++part) {
      total += from[part * n + i];
    }
    to[i] = static_cast<float>(total);
  }
}

}  // namespace torch_xla::handlers
