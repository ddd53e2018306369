#include "graph.h"

#include <algorithm>
#include <unordered_map>

#include "device.h"
#include "op.h"
#include "shortcuts.h"
#include "tensor.h"

namespace torch_xla {
namespace {

std::atomic<uint64_t> epochs{0};

// Equal for values of one shape that lie on the devices in one way.
uint64_t placed(const Node& node) {
  return node.shape().hash ^ (node.sharding.load(std::memory_order_relaxed) * 0x9E3779B97F4A7C15ull);
}

// Walks from roots to leaves without recursion, numbering and hashing on the way.
class Walk {
 public:
  explicit Walk(Graph& graph) : graph_(graph), epoch_(++epochs) {}

  void visit(Node* root) {
    if (seen(root)) {
      return;
    }
    enter(root);
    while (!stack_.empty()) {
      auto& [node, next] = stack_.back();
      if (next < node->inputs.size()) {
        Node* input = node->inputs[next++].get();
        if (!seen(input)) {
          enter(input);
        }
        ++input->uses;
      } else {
        leave(node);
        stack_.pop_back();
      }
    }
  }

  uint64_t epoch() const { return epoch_; }
  bool seen(const Node* node) const { return node->epoch == epoch_; }

 private:
  void enter(Node* node) {
    node->epoch = epoch_;
    node->uses = 0;
    if (node->pending()) {
      take_shortcuts(*node);
      stack_.emplace_back(node, 0);
      return;
    }
    node->index = static_cast<uint32_t>(graph_.leaves.size());
    graph_.leaves.push_back(node);
    graph_.key.mix(placed(*node));
  }

  void leave(Node* node) {
    node->index = static_cast<uint32_t>(graph_.nodes.size());
    graph_.nodes.push_back(node);
    graph_.key.mix(node->key);
    for (const auto& input : node->inputs) {
      graph_.key.mix((static_cast<uint64_t>(input->pending()) << 32) | input->index);
    }
    numbers(*node);
  }

  void numbers(const Node& node) {
    if (node.op == seed_op()) {
      graph_.ints.push_back(node.attrs[0].toInt());
      return;
    }
    for (size_t i = 0; i < node.op->kinds.size() && node.op != getitem_op(); ++i) {
      const ArgKind kind = node.op->kinds[i];
      if (kind == ArgKind::kScalar || (node.numbers >> i & 1)) {
        number(node.attrs[i]);
      } else if (kind == ArgKind::kScalars) {
        for (const auto& element : node.attrs[i].toListRef()) {
          number(element);
        }
      }
    }
  }

  void number(const c10::IValue& value) {
    if (is_constant_number(value)) {
      return;
    }
    if (value.isInt()) {
      graph_.ints.push_back(value.toInt());
    } else if (value.isDouble()) {
      graph_.floats.push_back(value.toDouble());
    } else {
      graph_.floats.push_back(value.toComplexDouble().real());
      graph_.floats.push_back(value.toComplexDouble().imag());
    }
  }

  Graph& graph_;
  const uint64_t epoch_;
  std::vector<std::pair<Node*, size_t>> stack_;
};

// What live tensors refer to, oldest first, an entry per reference.
std::vector<NodePtr> live_nodes(int8_t device, uint64_t walk) {
  auto& state = device_state(device);
  std::vector<NodePtr> nodes;
  Released released;
  const uint64_t epoch = ++epochs;
  std::lock_guard<SpinLock> lock(state.mutex);
  nodes.reserve(state.live() + 16);
  for (XlaTensor* t = state.first; t != nullptr; t = t->next) {
    t->settle(epoch, walk, nodes, released);
  }
  return nodes;
}

void add_roots(Graph& graph, const std::vector<NodePtr>& live) {
  for (const auto& node : live) {
    if (node->pending() && node->op != seed_op()) {
      graph.roots.push_back(node);
    }
  }
  // Several tensors may have one value; keep the first of each.
  std::vector<NodePtr> unique;
  const uint64_t epoch = ++epochs;
  for (auto& node : graph.roots) {
    if (node->epoch != epoch) {
      node->epoch = epoch;
      unique.push_back(std::move(node));
    }
  }
  graph.roots = std::move(unique);
}

// What pending values need, looked through for failures.
class FailureSearch {
 public:
  // The first failure among what `root` needs and `root` itself; null if there is none.
  FailurePtr find(Node* root) {
    enter(root);
    while (!stack_.empty()) {
      auto& [node, next] = stack_.back();
      if (next < node->inputs.size()) {
        enter(node->inputs[next++].get());
      } else {
        leave(node);
        stack_.pop_back();
      }
    }
    return root->uses == 0 ? FailurePtr() : failures_[root->uses - 1];
  }

 private:
  // In `uses`: 0, or the number of a failure.
  void enter(Node* node) {
    if (node->epoch == epoch_) {
      return;
    }
    node->epoch = epoch_;
    node->uses = 0;
    if (node->failure) {
      failures_.push_back(node->failure);
      node->uses = static_cast<uint32_t>(failures_.size());
    } else if (node->pending()) {
      stack_.emplace_back(node, 0);
    }
  }

  void leave(Node* node) {
    for (const auto& input : node->inputs) {
      if (node->uses == 0) {
        node->uses = input->uses;
      }
    }
  }

  const uint64_t epoch_ = ++epochs;
  std::vector<FailurePtr> failures_;
  std::vector<std::pair<Node*, size_t>> stack_;
};

// Takes the roots that cannot be computed, because something that they need could not, out of the graph.
void leave_out_failed(Graph& graph) {
  FailureSearch search;
  std::vector<NodePtr> computable;
  for (auto& root : graph.roots) {
    FailurePtr why = search.find(root.get());
    if (!why) {
      computable.push_back(std::move(root));
    } else if (!root->failure) {
      graph.failure = std::move(why);
      graph.blocked.push_back(std::move(root));
    }
  }
  graph.roots = std::move(computable);
}

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

void finish_key(Graph& graph) {
  for (const auto& root : graph.roots) {
    graph.key.mix((static_cast<uint64_t>(root->pending()) << 32) | root->index);
  }
  for (uint32_t position : graph.donated) {
    graph.key.mix(0xD0000000ull | position);
  }
}

// Small results of the graph that pending nodes outside of it need as well. They would compute them again, and with
// them all that they come from: a counter that each step of a loop adds to, in a graph that grows from read to read.
// (A thread that is recording with one holds it, too; then it is a result for nothing.)
void add_small_needed_elsewhere(const Graph& graph, std::vector<NodePtr>& candidates) {
  constexpr int64_t kSmall = 1024;  // elements: what is larger costs memory, and is computed again
  for (Node* node : graph.nodes) {
    const bool is_value = node->op == getitem_op() || (node->signature->outs.size() == 1 && !node->signature->is_list);
    if (is_value && !node->inputs.empty() && !node->op->is_view && node->shape().elements() <= kSmall &&
        c10::raw::intrusive_ptr::use_count(node) > node->uses) {
      candidates.push_back(NodePtr::reclaim_copy(node));
    }
  }
}

// What a read has computed does not count towards the size limit: a loop that reads a value in each step would be cut
// at another place of it every so often, which is another program each time.
void no_longer_pending(const Graph& graph) {
  int64_t ops = 0;
  for (const Node* node : graph.nodes) {
    ops += node->op != getitem_op() && node->op != seed_op();
  }
  auto& pending = device_state(graph.device).pending;
  int64_t now = pending.load(std::memory_order_relaxed);
  while (!pending.compare_exchange_weak(now, std::max<int64_t>(now - ops, 0), std::memory_order_relaxed)) {
  }
}

}  // namespace

Graph collect_all(int8_t device) {
  Graph graph;
  graph.device = device;
  const std::vector<NodePtr> live = live_nodes(device, 0);
  add_roots(graph, live);
  if (C10_UNLIKELY(device_state(device).failed.load(std::memory_order_relaxed) > 0)) {
    leave_out_failed(graph);
  }
  Walk walk(graph);
  for (const auto& root : graph.roots) {
    walk.visit(root.get());
  }
  find_donated(graph, live, walk);
  finish_key(graph);
  return graph;
}

Graph collect_values(int8_t device, const std::vector<NodePtr>& wanted) {
  Graph graph;
  graph.device = device;
  graph.is_part = true;
  add_roots(graph, wanted);
  Walk walk(graph);
  for (const auto& root : graph.roots) {
    walk.visit(root.get());
  }
  std::vector<NodePtr> candidates = graph.roots;
  add_small_needed_elsewhere(graph, candidates);
  for (auto& node : live_nodes(device, walk.epoch())) {
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

Graph collect_only(int8_t device, const std::vector<NodePtr>& wanted) {
  Graph graph;
  graph.device = device;
  graph.roots = wanted;
  Walk walk(graph);
  for (const auto& root : graph.roots) {
    walk.visit(root.get());
  }
  finish_key(graph);
  return graph;
}

std::vector<NodePtr> live_values(int8_t device) { return live_nodes(device, 0); }

void Graph::materialize(std::vector<BufferPtr> values) {
  TORCH_INTERNAL_ASSERT(values.size() == roots.size());
  if (is_part) {
    no_longer_pending(*this);
  }
  leaves.clear();
  nodes.clear();
  for (size_t i = 0; i < roots.size(); ++i) {
    roots[i]->materialize(std::move(values[i]));
  }
  roots.clear();
}

void Graph::fail(const FailurePtr& why, std::optional<size_t> culprit) {
  if (culprit) {
    for (Node* node : nodes) {
      node->uses = 0;
    }
    nodes.at(*culprit)->uses = 1;
    for (Node* node : nodes) {  // operands come before users
      for (const auto& input : node->inputs) {
        node->uses |= static_cast<uint32_t>(input->pending() && input->uses == 1);
      }
    }
  }
  for (const auto& root : roots) {
    if (root->pending() && (!culprit || root->uses == 1)) {
      root->fail(why);
    }
  }
}

void Graph::fail_blocked() {
  for (const auto& node : blocked) {
    node->fail(failure);
  }
  blocked.clear();
}

}  // namespace torch_xla
