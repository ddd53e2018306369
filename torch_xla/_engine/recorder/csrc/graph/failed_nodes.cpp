#include "graph/failed_nodes.h"

#include <utility>

namespace torch_xla {
namespace {

// Searches the operands of pending values for failures.
class FailureSearch {
 public:
  // Returns the first failure among `root` and its operands; null if there is none.
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
  // `uses` is 0, or the index of a failure plus 1.
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

  const uint64_t epoch_ = new_epoch();
  std::vector<FailurePtr> failures_;
  std::vector<std::pair<Node*, size_t>> stack_;
};

}  // namespace

void exclude_failed_roots(Graph& graph) {
  FailureSearch search;
  std::vector<NodePtr> computable;
  for (auto& root : graph.roots) {
    FailurePtr cause = search.find(root.get());
    if (!cause) {
      computable.push_back(std::move(root));
    } else if (!root->failure) {
      graph.failure = std::move(cause);
      graph.blocked.push_back(std::move(root));
    }
  }
  graph.roots = std::move(computable);
}

void Graph::fail(const FailurePtr& cause, std::optional<size_t> culprit) {
  if (culprit) {
    for (Node* node : nodes) {
      node->uses = 0;
    }
    nodes.at(*culprit)->uses = 1;
    for (Node* node : nodes) {  // operands before users
      for (const auto& input : node->inputs) {
        node->uses |= static_cast<uint32_t>(input->pending() && input->uses == 1);
      }
    }
  }
  for (const auto& root : roots) {
    if (root->pending() && (!culprit || root->uses == 1)) {
      root->fail(cause);
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
