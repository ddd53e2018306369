#include "interpreter/evaluation_order.h"

#include <utility>

#include "interpreter/foreach_elements.h"
#include "ir/op.h"

namespace torch_xla {
namespace {

class Order {
 public:
  explicit Order(const Graph& graph) : has_(graph.nodes.size()) { nodes_.reserve(graph.nodes.size()); }

  void append(const Node& node) {
    has_[node.index] = true;
    nodes_.push_back(&node);
  }

  // Appends an element, if `node` is one, after the elements that it needs. A chain of them may be as long as the graph.
  void require(const Node& node) {
    std::vector<const Node*> stack;
    if (is_missing(node)) {
      stack.push_back(&node);
    }
    while (!stack.empty()) {
      const Node& last = *stack.back();
      const size_t before = stack.size();
      visit_operands(last, [&](const NodePtr& operand) {
        if (is_missing(*operand)) {
          stack.push_back(operand.get());
        }
      });
      if (stack.size() == before) {
        stack.pop_back();
        if (is_missing(last)) {
          append(last);
        }
      }
    }
  }

  std::vector<const Node*> take() { return std::move(nodes_); }

 private:
  bool is_missing(const Node& node) const { return node.pending() && is_element(node) && !has_[node.index]; }

  std::vector<const Node*> nodes_;
  std::vector<bool> has_;
};

}  // namespace

bool is_element(const Node& node) { return node.op == getitem_op() && has_elements(*node.inputs[0]); }

void visit_operands(const Node& node, c10::function_ref<void(const NodePtr&)> visit) {
  if (is_element(node)) {
    visit_element_operands(*node.inputs[0], node.out, visit);
    return;
  }
  for (const auto& input : node.inputs) {
    visit(input);
  }
}

std::vector<const Node*> evaluation_order(const Graph& graph) {
  Order order(graph);
  for (const Node* node : graph.nodes) {
    if (has_elements(*node) || is_element(*node)) {
      continue;
    }
    visit_operands(*node, [&](const NodePtr& operand) { order.require(*operand); });
    order.append(*node);
  }
  for (const auto& root : graph.roots) {
    order.require(*root);
  }
  return order.take();
}

}  // namespace torch_xla
