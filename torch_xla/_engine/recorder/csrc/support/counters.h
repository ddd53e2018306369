// Named 64-bit counters. A counter is created once, lives as long as the process, and is incremented without a lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "support/lazy_pointer.h"

namespace torch_xla {

struct Counter {
  std::atomic<int64_t> value{0};
#ifdef TORCH_XLA_NO_COUNTERS  // defined by benchmarks/watching.py, which measures the cost of counting
  void add(int64_t = 1) {}
#else
  void add(int64_t n = 1) { value.fetch_add(n, std::memory_order_relaxed); }
#endif
};

// Returns the counter with that name, creating it on first use.
Counter* counter(const std::string& name);
using CounterPointer = LazyPointer<Counter, &counter>;

// Registers a callback that runs before counters are read or cleared, to add counts gathered elsewhere at lower cost.
// Call it only while the library is being loaded.
void add_counter_source(void (*gather)());

// Returns (name, value) of every nonzero counter, sorted by name.
std::vector<std::pair<std::string, int64_t>> counters();

void clear_counters();

}  // namespace torch_xla
