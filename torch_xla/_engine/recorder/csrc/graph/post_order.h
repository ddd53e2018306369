// Post-order traversal from the results of a graph to its leaves, without recursion: numbers the nodes (operands before
// users) and the leaves (in order of first use), mixes both into the graph's key, and collects the number operands. The
// scratch fields it sets in a Node (epoch, index, uses) are valid until the next traversal of the same device, under
// the execution lock.
#pragma once

#include <utility>
#include <vector>

#include "graph/graph.h"

namespace torch_xla {

// Returns a hash that is equal for values of equal shape, dtype and sharding.
inline uint64_t layout_hash(const Node& node) {
  return node.shape().hash ^ (node.sharding.load(std::memory_order_relaxed) * 0x9E3779B97F4A7C15ull);
}

// Appends the number operands of a node to those of a graph. The number of a seed is the seed.
void append_numbers(const Node& node, std::vector<double>& floats, std::vector<int64_t>& ints);

class PostOrder {
 public:
  explicit PostOrder(Graph& graph) : graph_(graph), epoch_(new_epoch()) {}

  // Traverses from one more root. `uses` of a visited node counts its uses by other nodes of the graph.
  void visit(Node* root);

  uint64_t epoch() const { return epoch_; }
  bool seen(const Node* node) const { return node->epoch == epoch_; }

 private:
  void enter(Node* node);
  void leave(Node* node);

  Graph& graph_;
  const uint64_t epoch_;
  std::vector<std::pair<Node*, size_t>> stack_;
};

}  // namespace torch_xla
