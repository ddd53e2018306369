// Named 64-bit counters. A counter is made once, lives as long as the process, and is bumped without a lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace torch_xla {

struct Counter {
  std::atomic<int64_t> value{0};
#ifdef TORCH_XLA_NO_COUNTERS  // a build of benchmarks/watching.py, which measures what counting costs
  void add(int64_t = 1) {}
#else
  void add(int64_t n = 1) { value.fetch_add(n, std::memory_order_relaxed); }
#endif
};

// The counter of that name; the same object for the same name.
Counter* counter(const std::string& name);

// Called before counters are read or cleared: adds what was counted elsewhere, where it costs less. To be named while
// the library is being loaded.
void add_counter_source(void (*gather)());

// (name, value) of every counter that is not zero, sorted by name.
std::vector<std::pair<std::string, int64_t>> counters();

// Sets every counter to zero.
void clear_counters();

}  // namespace torch_xla
