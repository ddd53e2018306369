#include "ir/node.h"

#include <vector>

#include "ir/op.h"
#include "ir/source_location.h"
#include "runtime/device.h"

namespace torch_xla {
namespace {

// Releases references iteratively, not recursively: a chain of a million nodes must not overflow the stack.
void release_iteratively(c10::SmallVector<NodePtr, 3>& inputs) {
  static thread_local std::vector<NodePtr>* work = nullptr;
  if (work != nullptr) {
    for (auto& input : inputs) {
      work->push_back(std::move(input));
    }
    inputs.clear();
    return;
  }
  std::vector<NodePtr> stack;
  for (auto& input : inputs) {
    stack.push_back(std::move(input));
  }
  inputs.clear();
  work = &stack;
  while (!stack.empty()) {
    NodePtr node = std::move(stack.back());
    stack.pop_back();
    node.reset();
  }
  work = nullptr;
}

bool any_last_reference(const c10::SmallVector<NodePtr, 3>& inputs) {
  for (const auto& input : inputs) {
    if (input.use_count() == 1) {
      return true;
    }
  }
  return false;
}

}  // namespace

DeviceState* all_device_states() {
  static auto* states = new DeviceState[kMaxDevices];
  return states;
}

Shape::Shape(at::ScalarType dtype_, at::IntArrayRef sizes_) : dtype(dtype_), sizes(sizes_) {
  Key key;
  key.mix(static_cast<uint64_t>(dtype));
  key.mix(static_cast<uint64_t>(sizes.size()));
  for (int64_t size : sizes) {
    key.mix(static_cast<uint64_t>(size));
  }
  hash = key.a ^ key.b;
}

OutputSpecPtr make_output_spec(at::ScalarType dtype, at::IntArrayRef sizes) {
  auto output_spec = c10::make_intrusive<OutputSpec>();
  output_spec->outs.emplace_back(dtype, sizes);
  return output_spec;
}

Failure::~Failure() { release_reference(error); }

void Node::materialize(BufferPtr value) {
  sharding.store(value->sharding, std::memory_order_relaxed);
  buffer = std::move(value);
  fail(nullptr);
  op = nullptr;
  attrs.clear();
  is_scatter = false;
  has_start = false;
  numbers = 0;
  key = Key{};
  release_iteratively(inputs);
}

void Node::fail(FailurePtr cause) {
  if (static_cast<bool>(failure) != static_cast<bool>(cause)) {
    device_state(device).failed.fetch_add(cause ? 1 : -1, std::memory_order_relaxed);
  }
  failure = std::move(cause);
}

Node::~Node() {
  fail(nullptr);
  if (any_last_reference(inputs)) {
    release_iteratively(inputs);
  }
}

int64_t op_count(const Op& op, const OutputSpec& results) {
  if (&op == getitem_op() || &op == seed_op()) {
    return 0;
  }
  return op.foreach ? static_cast<int64_t>(results.outs.size()) : 1;
}

uint64_t new_epoch() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

NodePtr getitem_node(const NodePtr& node, uint32_t out) {
  auto item = c10::make_intrusive<Node>();
  item->op = getitem_op();
  item->out = out;
  item->device = node->device;
  item->key = getitem_op()->key;
  item->key.mix(static_cast<uint64_t>(out));
  item->attrs.emplace_back(static_cast<int64_t>(out));
  item->output_spec = node->output_spec;
  item->origin = node->origin;
  item->inputs.push_back(node);
  return item;
}

NodePtr make_leaf(BufferPtr buffer, OutputSpecPtr output_spec, int8_t device) {
  auto node = c10::make_intrusive<Node>();
  node->sharding.store(buffer->sharding, std::memory_order_relaxed);
  node->buffer = std::move(buffer);
  node->output_spec = std::move(output_spec);
  node->device = device;
  node->origin = current_origin();
  return node;
}

}  // namespace torch_xla
