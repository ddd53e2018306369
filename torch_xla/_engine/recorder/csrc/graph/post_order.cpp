#include "graph/post_order.h"

#include "graph/concat_forwarding.h"
#include "ir/attribute_hash.h"
#include "ir/op.h"

namespace torch_xla {

inline void PostOrder::enter(Node* node) {
  node->epoch = epoch_;
  node->uses = 0;
  if (node->pending()) {
    forward_through_concat(*node);
    stack_.emplace_back(node, 0);
    return;
  }
  node->index = static_cast<uint32_t>(graph_.leaves.size());
  graph_.leaves.push_back(node);
  graph_.key.mix(layout_hash(*node));
}

namespace {

inline void append_number(const c10::IValue& value, std::vector<double>& floats, std::vector<int64_t>& ints) {
  if (is_constant_number(value)) {
    return;
  }
  if (value.isInt()) {
    ints.push_back(value.toInt());
  } else if (value.isDouble()) {
    floats.push_back(value.toDouble());
  } else {
    floats.push_back(value.toComplexDouble().real());
    floats.push_back(value.toComplexDouble().imag());
  }
}

inline void append_numbers_of(const Node& node, std::vector<double>& floats, std::vector<int64_t>& ints) {
  if (node.op == seed_op()) {
    ints.push_back(node.attrs[0].toInt());
    return;
  }
  for (size_t i = 0; i < node.op->kinds.size() && node.op != getitem_op(); ++i) {
    const ArgKind kind = node.op->kinds[i];
    if (kind == ArgKind::kScalar || (node.numbers >> i & 1)) {
      append_number(node.attrs[i], floats, ints);
    } else if (kind == ArgKind::kScalars) {
      const auto list = node.attrs[i].toListRef();
      for (const auto& element : is_uniform(list) ? list.slice(0, 1) : list) {
        append_number(element, floats, ints);
      }
    }
  }
}

}  // namespace

void append_numbers(const Node& node, std::vector<double>& floats, std::vector<int64_t>& ints) {
  append_numbers_of(node, floats, ints);
}

inline void PostOrder::leave(Node* node) {
  node->index = static_cast<uint32_t>(graph_.nodes.size());
  graph_.nodes.push_back(node);
  graph_.key.mix(node->key);
  for (const auto& input : node->inputs) {
    graph_.key.mix((static_cast<uint64_t>(input->pending()) << 32) | input->index);
  }
  append_numbers_of(*node, graph_.floats, graph_.ints);
  if (C10_UNLIKELY(node->has_start)) {
    graph_.starts.push_back(node->attrs[node->op->start].toInt());
  }
}

void PostOrder::visit(Node* root) {
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

}  // namespace torch_xla
