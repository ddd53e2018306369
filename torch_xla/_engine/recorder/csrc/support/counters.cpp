#include "support/counters.h"

#include <map>
#include <memory>
#include <mutex>

#include "support/fork_safe_lock.h"

namespace torch_xla {
namespace {

struct CounterTable {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<Counter>> counters;
};

// Never destroyed: kernels and tensors increment counters during process exit.
CounterTable& counter_table() {
  static auto* t = new CounterTable;
  return *t;
}

std::vector<void (*)()>& sources() {
  static auto* s = new std::vector<void (*)()>;
  return *s;
}

void gather_all() {
  for (const auto gather : sources()) {
    gather();
  }
}

const ForkSafeLock counters_fork_safe(counter_table().mutex);

}  // namespace

Counter* counter(const std::string& name) {
  std::lock_guard<std::mutex> lock(counter_table().mutex);
  auto& slot = counter_table().counters[name];
  if (!slot) {
    slot = std::make_unique<Counter>();
  }
  return slot.get();
}

void add_counter_source(void (*gather)()) { sources().push_back(gather); }

std::vector<std::pair<std::string, int64_t>> counters() {
  gather_all();
  std::lock_guard<std::mutex> lock(counter_table().mutex);
  std::vector<std::pair<std::string, int64_t>> out;
  for (const auto& [name, c] : counter_table().counters) {
    if (const int64_t value = c->value.load(std::memory_order_relaxed)) {
      out.emplace_back(name, value);
    }
  }
  return out;
}

void clear_counters() {
  gather_all();
  std::lock_guard<std::mutex> lock(counter_table().mutex);
  for (auto& [name, c] : counter_table().counters) {
    c->value.store(0, std::memory_order_relaxed);
  }
}

}  // namespace torch_xla
