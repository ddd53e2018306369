#include "graph/slice_starts.h"

#include <mutex>

#include "compat/torch_internal.h"
#include "support/fork_safe_lock.h"

namespace torch_xla {
namespace {

// Over all graph kinds: bounds the table for a process whose graphs never repeat.
constexpr size_t kMaxStarts = 1 << 20;

struct GraphKind {
  std::vector<int64_t> starts;   // of the first graph of this kind
  std::vector<uint8_t> varying;  // whether a later graph had another start there
};

struct StartTable {
  std::mutex mutex;
  compat::FlatMap<Key, GraphKind, KeyHash> kinds;
  size_t starts = 0;
};

StartTable& start_table() {
  static auto* t = new StartTable;
  return *t;
}

const ForkSafeLock start_table_fork_safe(start_table().mutex);

// Returns, including this graph, which of its starts are operands.
std::vector<uint8_t> find_varying(const Key& kind, const std::vector<int64_t>& starts) {
  StartTable& t = start_table();
  std::lock_guard<std::mutex> lock(t.mutex);
  const auto found = t.kinds.find(kind);
  if (found == t.kinds.end()) {
    if (t.starts + starts.size() > kMaxStarts) {
      t.kinds.clear();
      t.starts = 0;
    }
    t.starts += starts.size();
    std::vector<uint8_t> none(starts.size(), 0);
    t.kinds.emplace(kind, GraphKind{starts, none});
    return none;
  }
  GraphKind& known = found->second;
  for (size_t i = 0; i < starts.size(); ++i) {
    known.varying[i] |= static_cast<uint8_t>(known.starts[i] != starts[i]);
  }
  return known.varying;
}

}  // namespace

void finalize_starts(Graph& graph) {
  if (graph.starts.empty()) {
    return;
  }
  Key kind = graph.key;
  kind.mix(static_cast<uint64_t>(graph.device));
  graph.varying = find_varying(kind, graph.starts);
  for (size_t i = 0; i < graph.starts.size(); ++i) {
    const bool varies = graph.varying[i] != 0;
    graph.key.mix(static_cast<uint64_t>(varies));
    if (varies) {
      graph.ints.push_back(graph.starts[i]);
    } else {
      graph.key.mix(static_cast<uint64_t>(graph.starts[i]));
    }
  }
}

}  // namespace torch_xla
