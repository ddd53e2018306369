#include "graph/donation.h"

#include <algorithm>
#include <unordered_map>

#include "ir/op.h"

namespace torch_xla {
namespace {

using RootsByHash = std::unordered_map<uint64_t, std::vector<size_t>>;  // indices of roots, by layout hash
using LeafToRoot = std::unordered_map<const Node*, size_t>;             // leaf -> index of the root derived from it

// Returns the operand that an in-place operation overwrites: the first of the result's shape; for a foreach op, the
// operand at the same position in the list.
const Node* in_place_operand(const Node& node) {
  const Node& from = node.op == getitem_op() ? *node.inputs[0] : node;
  const auto same_shape = [&](const NodePtr& input) { return input->shape().hash == node.shape().hash; };
  if (&from != &node && node.out < from.inputs.size() && same_shape(from.inputs[node.out])) {
    return from.inputs[node.out].get();
  }
  const auto found = std::find_if(from.inputs.begin(), from.inputs.end(), same_shape);
  return found == from.inputs.end() ? nullptr : found->get();
}

// Returns the leaf that became `root` by in-place operations, as a parameter does in an optimizer step; null if none.
const Node* updated_leaf(const Node* root) {
  constexpr int kMaxUpdateOps = 64;  // operations; an optimizer update has fewer
  const Node* node = root;
  for (int i = 0; node != nullptr && node->pending() && i < kMaxUpdateOps; ++i) {
    node = in_place_operand(*node);
  }
  return node != nullptr && !node->pending() && layout_hash(*node) == layout_hash(*root) ? node : nullptr;
}

LeafToRoot find_updated_leaves(const Graph& graph) {
  LeafToRoot pairs;
  for (size_t i = 0; i < graph.roots.size(); ++i) {
    if (const Node* leaf = updated_leaf(graph.roots[i].get())) {
      pairs.emplace(leaf, i);
    }
  }
  return pairs;
}

// Selects the leaves to donate, up to the number of results that can reuse them; leaves with a derived root first.
void select_leaves(Graph& graph, const std::vector<uint32_t>& candidates, const LeafToRoot& pairs) {
  std::unordered_map<uint64_t, int> capacity;  // results that can reuse a donated buffer, by layout hash
  for (const auto& root : graph.roots) {
    ++capacity[layout_hash(*root)];
  }
  for (const bool paired : {true, false}) {
    for (const uint32_t position : candidates) {
      const Node* leaf = graph.leaves[position];
      const auto found = capacity.find(layout_hash(*leaf));
      if ((pairs.count(leaf) > 0) == paired && found != capacity.end() && found->second > 0) {
        --found->second;
        graph.donated.push_back(position);
      }
    }
  }
  std::sort(graph.donated.begin(), graph.donated.end());
}

// Reorders the roots of each shape and dtype. jax assigns the first donated buffer of a shape and dtype to the first
// such result, the second to the second, and so on. A result that overwrites another value than the one it is derived
// from costs two copies, because that value is still needed.
void order_roots(Graph& graph, const LeafToRoot& pairs) {
  std::vector<bool> taken(graph.roots.size());
  for (const uint32_t position : graph.donated) {
    const auto pair = pairs.find(graph.leaves[position]);
    if (pair != pairs.end()) {
      taken[pair->second] = true;
    }
  }
  RootsByHash free;  // by shape and sharding, last first
  for (size_t i = graph.roots.size(); i-- > 0;) {
    if (!taken[i]) {
      free[layout_hash(*graph.roots[i])].push_back(i);
    }
  }
  RootsByHash order;  // by shape and dtype
  for (const uint32_t position : graph.donated) {
    const Node* leaf = graph.leaves[position];
    const auto pair = pairs.find(leaf);
    auto& others = free[layout_hash(*leaf)];
    const size_t root = pair != pairs.end() ? pair->second : others.back();
    if (pair == pairs.end()) {
      others.pop_back();
      taken[root] = true;
    }
    order[leaf->shape().hash].push_back(root);
  }
  for (size_t i = 0; i < graph.roots.size(); ++i) {
    if (!taken[i]) {
      order[graph.roots[i]->shape().hash].push_back(i);
    }
  }
  std::vector<NodePtr> roots;
  std::unordered_map<uint64_t, size_t> next;
  roots.reserve(graph.roots.size());
  for (const auto& root : graph.roots) {
    const uint64_t kind = root->shape().hash;
    roots.push_back(graph.roots[order[kind][next[kind]++]]);
  }
  graph.roots = std::move(roots);
}

}  // namespace

// Which leaves are donated. `uses` counts the graph's own edges; any further reference, beyond the ones that we hold,
// may read the node later. A leaf's buffer is donated if all of these hold:
//
//  condition                                              otherwise
//  every reference to every node of the graph is known    a thread is recording with one of them right now
//  no live tensor or Alias refers to the leaf             the tensor is read after the step
//  nothing else refers to the leaf                        a node outside of the graph or a hook's argument reads it
//  the buffer has one owner                               another leaf shares it
//  a result of the same shape and sharding can reuse it   XLA could not use it
void select_donated_leaves(Graph& graph, const std::vector<NodePtr>& live, const PostOrder& walk) {
  constexpr uint32_t kReadable = 1u << 30;
  for (const auto& node : live) {
    if (walk.seen(node.get())) {
      node->uses += node->pending() ? 2 : kReadable;  // 2: the tensor's reference, and the entry in `live`
    }
  }
  for (const auto& root : graph.roots) {
    root->uses += 1;
  }
  for (const Node* node : graph.nodes) {
    if (c10::raw::intrusive_ptr::use_count(const_cast<Node*>(node)) != node->uses && node->op != seed_op()) {
      return;  // another thread is recording with a value of this graph
    }
  }
  std::vector<uint32_t> candidates;
  for (size_t i = 0; i < graph.leaves.size(); ++i) {
    Node* leaf = graph.leaves[i];
    if (c10::raw::intrusive_ptr::use_count(leaf) == leaf->uses && leaf->buffer.use_count() == 1) {
      candidates.push_back(static_cast<uint32_t>(i));
    }
  }
  if (!candidates.empty()) {
    const LeafToRoot pairs = find_updated_leaves(graph);
    select_leaves(graph, candidates, pairs);
    order_roots(graph, pairs);
  }
}

}  // namespace torch_xla
