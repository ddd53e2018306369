#include "dispatch/slice_starts.h"

#include <algorithm>
#include <mutex>

#include "compat/torch_internal.h"
#include "ir/attribute_hash.h"
#include "support/fork_safe_lock.h"

namespace torch_xla {
namespace {

// Of all kinds of graphs together: a process whose graphs never repeat must not grow it without bound.
constexpr size_t kMaxStarts = 1 << 20;

struct KindOfGraph {
  std::vector<int64_t> starts;   // of the first graph of the kind
  std::vector<uint8_t> varying;  // whether another one had another start there
};

struct StartTable {
  std::mutex mutex;
  compat::FlatMap<Key, KindOfGraph, KeyHash> kinds;
  size_t starts = 0;
};

StartTable& start_table() {
  static auto* t = new StartTable;
  return *t;
}

const ForkSafeLock start_table_held(start_table().mutex);

// Which of the starts are operands, after this graph.
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
    t.kinds.emplace(kind, KindOfGraph{starts, none});
    return none;
  }
  KindOfGraph& known = found->second;
  for (size_t i = 0; i < starts.size(); ++i) {
    known.varying[i] |= static_cast<uint8_t>(known.starts[i] != starts[i]);
  }
  return known.varying;
}

}  // namespace

std::optional<Range> range_of(const Op& op, c10::ArrayRef<c10::IValue> arguments, at::IntArrayRef sizes) {
  const auto rank = static_cast<int64_t>(sizes.size());
  const int64_t dim = from_start(arguments[op.start - 1].toInt(), rank);
  if (dim < 0 || dim >= rank) {
    return std::nullopt;
  }
  const int64_t size = sizes[dim];
  const auto bound = [&](const c10::IValue& given, int64_t absent) {
    return std::clamp<int64_t>(given.isNone() ? absent : from_start(given.toInt(), size), 0, size);
  };
  if (op.part == PartForm::kSlice) {
    const int64_t begin = bound(arguments[op.start], 0);
    return arguments[op.start + 2].toInt() < 1
               ? std::nullopt
               : std::make_optional(Range{begin, std::max(begin, bound(arguments[op.start + 1], size)), size});
  }
  const int64_t begin = from_start(arguments[op.start].toInt(), size);
  const int64_t length = op.part == PartForm::kIndex ? 1 : arguments[op.start + 1].toInt();
  return begin < 0 || length < 0 || begin > size - length ? std::nullopt
                                                          : std::make_optional(Range{begin, begin + length, size});
}

void mix_part(Node& node, const Range& range) {
  node.has_start = true;
  node.key.mix(kStart);
  node.key.mix(static_cast<uint64_t>(range.end - range.begin));
}

void settle_starts(Graph& graph) {
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
