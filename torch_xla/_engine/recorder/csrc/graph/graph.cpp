#include "graph/graph.h"

#include <algorithm>
#include <unordered_set>

#include "graph/donation.h"
#include "graph/failed_nodes.h"
#include "graph/post_order.h"
#include "graph/slice_starts.h"
#include "ir/op.h"
#include "runtime/device.h"
#include "tensor/live_tensors.h"

namespace torch_xla {
namespace {

void add_roots(Graph& graph, const std::vector<NodePtr>& live) {
  for (const auto& node : live) {
    if (node->pending() && node->op != seed_op()) {
      graph.roots.push_back(node);
    }
  }
  // Several tensors may share a value; list it once.
  std::vector<NodePtr> unique;
  const uint64_t epoch = new_epoch();
  for (auto& node : graph.roots) {
    if (node->epoch != epoch) {
      node->epoch = epoch;
      unique.push_back(std::move(node));
    }
  }
  graph.roots = std::move(unique);
}

void finish_key(Graph& graph) {
  for (const auto& root : graph.roots) {
    graph.key.mix((static_cast<uint64_t>(root->pending()) << 32) | root->index);
  }
  for (uint32_t position : graph.donated) {
    graph.key.mix(0xD0000000ull | position);
  }
  finalize_starts(graph);
}

// Adds small results of the graph that pending nodes outside of it need as well. Otherwise those would recompute them
// together with their operands: a counter incremented in each step of a loop would make the graph grow with each read.
// (A thread that is recording with a node holds a reference too; then the result is unused.)
void add_shared_small_values(const Graph& graph, std::vector<NodePtr>& candidates) {
  constexpr int64_t kSmall = 1024;  // elements; larger values cost memory, and are recomputed
  for (Node* node : graph.nodes) {
    const bool is_value =
        node->op == getitem_op() || (node->output_spec->outs.size() == 1 && !node->output_spec->is_list);
    if (is_value && !node->inputs.empty() && !node->op->is_view && node->shape().elements() <= kSmall &&
        c10::raw::intrusive_ptr::use_count(node) > node->uses) {
      candidates.push_back(NodePtr::reclaim_copy(node));
    }
  }
}

// Counts how often nodes were computed by partial graphs without becoming results: the next read that needs them
// recomputes them. Consecutive reads, without an operation recorded in between, count once: they read several results
// of one step.
void count_computations(const Graph& graph) {
  auto& state = device_state(graph.device);
  if (state.pending.load(std::memory_order_relaxed) == state.pending_after_read) {
    return;
  }
  for (Node* node : graph.nodes) {
    node->computations += node->computations < UINT8_MAX;
  }
}

// Subtracts the ops of a partial graph from the pending count. Otherwise a loop that reads a value in each step would
// periodically flush at another point of the loop, and compile another program each time.
void subtract_from_pending(const Graph& graph) {
  int64_t ops = 0;
  for (const Node* node : graph.nodes) {
    ops += op_count(*node->op, *node->output_spec);
  }
  auto& pending = device_state(graph.device).pending;
  int64_t now = pending.load(std::memory_order_relaxed);
  while (!pending.compare_exchange_weak(now, std::max<int64_t>(now - ops, 0), std::memory_order_relaxed)) {
  }
}

// Computing it again costs nothing: a decoding loop views each token again when it reads the sequence.
bool is_view_of_stored_value(const Node& node) {
  return node.op->is_view &&
         std::none_of(node.inputs.begin(), node.inputs.end(), [](const NodePtr& input) { return input->pending(); });
}

}  // namespace

Graph collect_all(int8_t device) {
  Graph graph;
  graph.device = device;
  const std::vector<NodePtr> live = live_values(device);
  add_roots(graph, live);
  if (C10_UNLIKELY(device_state(device).failed.load(std::memory_order_relaxed) > 0)) {
    exclude_failed_roots(graph);
  }
  PostOrder walk(graph);
  for (const auto& root : graph.roots) {
    walk.visit(root.get());
  }
  select_donated_leaves(graph, live, walk);
  finish_key(graph);
  return graph;
}

Graph collect_values(int8_t device, const std::vector<NodePtr>& values) {
  Graph graph;
  graph.device = device;
  graph.is_partial = true;
  add_roots(graph, values);
  PostOrder walk(graph);
  for (const auto& root : graph.roots) {
    walk.visit(root.get());
  }
  std::vector<NodePtr> candidates = graph.roots;
  add_shared_small_values(graph, candidates);
  for (auto& node : live_values(device, walk.epoch())) {
    if (walk.seen(node.get())) {
      candidates.push_back(std::move(node));
    }
  }
  graph.roots.clear();
  const uint32_t marker = ~0u;
  for (auto& node : candidates) {
    if (node->pending() && node->op != seed_op() && node->uses != marker) {
      node->uses = marker;
      graph.roots.push_back(std::move(node));
    }
  }
  finish_key(graph);
  return graph;
}

Graph collect_only(int8_t device, const std::vector<NodePtr>& values) {
  Graph graph;
  graph.device = device;
  graph.roots = values;
  PostOrder walk(graph);
  for (const auto& root : graph.roots) {
    walk.visit(root.get());
  }
  finish_key(graph);
  return graph;
}

size_t distinct_ops(const Graph& graph) {
  std::unordered_set<Key, KeyHash> found;
  for (const Node* node : graph.nodes) {
    if (node->op != getitem_op()) {
      found.insert(node->key);
    }
  }
  return found.size();
}

bool has_any_op(const Graph& graph, const std::vector<std::string>& names) {
  std::vector<const Op*> ops;
  for (const auto& name : names) {
    ops.push_back(find_op(name));
  }
  return std::any_of(graph.nodes.begin(), graph.nodes.end(),
                     [&ops](const Node* n) { return std::find(ops.begin(), ops.end(), n->op) != ops.end(); });
}

size_t new_nodes(const Graph& graph) {
  return std::count_if(graph.nodes.begin(), graph.nodes.end(), [](const Node* n) { return n->computations == 0; });
}

size_t recomputed_nodes(const Graph& graph) {
  return std::count_if(graph.nodes.begin(), graph.nodes.end(),
                       [](const Node* n) { return n->computations >= 2 && !is_view_of_stored_value(*n); });
}

void Graph::materialize(std::vector<BufferPtr> values) {
  TORCH_INTERNAL_ASSERT(values.size() == roots.size());
  if (is_partial) {
    count_computations(*this);
    subtract_from_pending(*this);
    auto& state = device_state(device);
    state.pending_after_read = state.pending.load(std::memory_order_relaxed);
  }
  leaves.clear();
  nodes.clear();
  for (size_t i = 0; i < roots.size(); ++i) {
    roots[i]->materialize(std::move(values[i]));
  }
  roots.clear();
}

}  // namespace torch_xla
