#include "graph/donation.h"

#include <algorithm>
#include <unordered_map>

#include "ir/op.h"

namespace torch_xla {
namespace {

using Places = std::unordered_map<uint64_t, std::vector<size_t>>;  // roots, by their number, of one kind each
using Pairs = std::unordered_map<const Node*, size_t>;             // leaf -> the root that is made of it

// The operand that an operation in place writes over: the first of the result's shape; of a list, the one of its place.
const Node* in_place_operand(const Node& node) {
  const Node& from = node.op == getitem_op() ? *node.inputs[0] : node;
  const auto fits = [&](const NodePtr& input) { return input->shape().hash == node.shape().hash; };
  if (&from != &node && node.out < from.inputs.size() && fits(from.inputs[node.out])) {
    return from.inputs[node.out].get();
  }
  const auto found = std::find_if(from.inputs.begin(), from.inputs.end(), fits);
  return found == from.inputs.end() ? nullptr : found->get();
}

// The leaf that became `root` by operations in place, as a parameter does in an optimizer's step; null if there is
// none.
const Node* updated_leaf(const Node* root) {
  constexpr int kFar = 64;  // operations; an update has fewer
  const Node* node = root;
  for (int i = 0; node != nullptr && node->pending() && i < kFar; ++i) {
    node = in_place_operand(*node);
  }
  return node != nullptr && !node->pending() && layout_hash(*node) == layout_hash(*root) ? node : nullptr;
}

Pairs pairs_of(const Graph& graph) {
  Pairs pairs;
  for (size_t i = 0; i < graph.roots.size(); ++i) {
    if (const Node* leaf = updated_leaf(graph.roots[i].get())) {
      pairs.emplace(leaf, i);
    }
  }
  return pairs;
}

// Those that may be donated, as far as there is room; first the ones that a result is made of.
void choose(Graph& graph, const std::vector<uint32_t>& candidates, const Pairs& pairs) {
  std::unordered_map<uint64_t, int> room;  // results that a donated buffer can become, by shape and sharding
  for (const auto& root : graph.roots) {
    ++room[layout_hash(*root)];
  }
  for (const bool paired : {true, false}) {
    for (const uint32_t position : candidates) {
      const Node* leaf = graph.leaves[position];
      const auto found = room.find(layout_hash(*leaf));
      if ((pairs.count(leaf) > 0) == paired && found != room.end() && found->second > 0) {
        --found->second;
        graph.donated.push_back(position);
      }
    }
  }
  std::sort(graph.donated.begin(), graph.donated.end());
}

// jax gives the first donated buffer of a shape and dtype to the first result of them, the second to the second, and so
// on. A result that is written over another value than it is made of costs two copies: that value is still needed. So
// the results of one shape and dtype change places among themselves.
void order_roots(Graph& graph, const Pairs& pairs) {
  std::vector<bool> taken(graph.roots.size());
  for (const uint32_t position : graph.donated) {
    const auto pair = pairs.find(graph.leaves[position]);
    if (pair != pairs.end()) {
      taken[pair->second] = true;
    }
  }
  Places free;  // by shape and sharding, the last first
  for (size_t i = graph.roots.size(); i-- > 0;) {
    if (!taken[i]) {
      free[layout_hash(*graph.roots[i])].push_back(i);
    }
  }
  Places order;  // by shape and dtype
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

// Who may still read a node: `uses` counts the graph's own edges, so any further reference (beyond those that we hold)
// belongs to somebody who can read it later. A leaf's buffer is donated if all of these hold:
//
//   every reference to every node of the graph is known   else some thread is recording with one of them just now
//   no live tensor or Alias has the leaf                   else it is read after the step
//   nobody else holds the leaf                             an edge of a node outside of the graph, a hook's argument
//   the buffer has this one owner                          else another leaf shares it
//   a result of its shape and sharding has room for it     else XLA could not use it
void select_donated_leaves(Graph& graph, const std::vector<NodePtr>& live, const PostOrder& walk) {
  constexpr uint32_t kReadable = 1u << 30;
  for (const auto& node : live) {
    if (walk.seen(node.get())) {
      node->uses += node->pending() ? 2 : kReadable;  // 2: that reference, and the entry in `live`
    }
  }
  for (const auto& root : graph.roots) {
    root->uses += 1;
  }
  for (const Node* node : graph.nodes) {
    if (c10::raw::intrusive_ptr::use_count(const_cast<Node*>(node)) != node->uses && node->op != seed_op()) {
      return;  // some thread is just recording with a value of this graph
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
    const Pairs pairs = pairs_of(graph);
    choose(graph, candidates, pairs);
    order_roots(graph, pairs);
  }
}

}  // namespace torch_xla
