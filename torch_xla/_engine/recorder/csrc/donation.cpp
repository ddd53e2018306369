#include "donation.h"

#include <unordered_map>

#include "op.h"

namespace torch_xla {

// Who may still read a node: `uses` counts the graph's own edges, so any further reference (beyond those that we hold)
// belongs to somebody who can read it later. A leaf's buffer is donated if all of these hold:
//
//   every reference to every node of the graph is known   else some thread is recording with one of them just now
//   no live tensor or Alias has the leaf                   else it is read after the step
//   nobody else holds the leaf                             an edge of a node outside of the graph, a hook's argument
//   the buffer has this one owner                          else another leaf shares it
//   a result of its shape and sharding has room for it     else XLA could not use it
void find_donated(Graph& graph, const std::vector<NodePtr>& live, const Walk& walk) {
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
  std::unordered_map<uint64_t, int> room;  // results that a donated buffer can become, by shape and sharding
  for (const auto& root : graph.roots) {
    ++room[placed(*root)];
  }
  for (size_t i = 0; i < graph.leaves.size(); ++i) {
    Node* leaf = graph.leaves[i];
    const bool alone = c10::raw::intrusive_ptr::use_count(leaf) == leaf->uses && leaf->buffer.use_count() == 1;
    auto found = room.find(placed(*leaf));
    if (alone && found != room.end() && found->second > 0) {
      --found->second;
      graph.donated.push_back(static_cast<uint32_t>(i));
    }
  }
}

}  // namespace torch_xla
