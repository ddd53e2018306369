#include "ir/node.h"

#include <Python.h>

#include <mutex>
#include <vector>

#include "ir/op.h"
#include "ir/source_location.h"
#include "runtime/device.h"
#include "support/counters.h"
#include "support/fork_safe_lock.h"

namespace torch_xla {
namespace {

struct Parked {
  std::mutex mutex;
  std::vector<PyObject*> arrays;
  std::atomic<bool> abandoned{false};
};

Parked& parked() {
  static auto* p = new Parked;
  return *p;
}

const ForkSafeLock parked_held(parked().mutex);

// Drops references one after the other instead of recursively: a chain of a million nodes must not overflow the stack.
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

void release_reference(PyObject* object) {
  if (parked().abandoned.load(std::memory_order_acquire)) {
    return;
  }
  if (PyGILState_Check()) {
    Py_DECREF(object);
    return;
  }
  std::lock_guard<std::mutex> lock(parked().mutex);
  parked().arrays.push_back(object);
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

SignaturePtr make_signature(at::ScalarType dtype, at::IntArrayRef sizes) {
  auto signature = c10::make_intrusive<OutputSpec>();
  signature->outs.emplace_back(dtype, sizes);
  return signature;
}

Buffer::Buffer(PyObject* array_, int8_t device_, int64_t bytes_, uint32_t provenance_, uint32_t sharding_)
    : array(array_), bytes(bytes_), provenance(provenance_), sharding(sharding_), device(device_) {
  static Counter* created = counter("CreateDataHandles");
  created->add();
  count();
}

Buffer::~Buffer() {
  static Counter* destroyed = counter("DestroyDataHandles");
  destroyed->add();
  donate();
  release_reference(array);
}

Failure::~Failure() { release_reference(error); }

void drain_parked_buffers() {
  std::vector<PyObject*> arrays;
  {
    std::lock_guard<std::mutex> lock(parked().mutex);
    arrays.swap(parked().arrays);
  }
  for (PyObject* array : arrays) {
    Py_DECREF(array);
  }
}

void leak_buffers() { parked().abandoned.store(true, std::memory_order_release); }

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

void Node::fail(FailurePtr why) {
  if (static_cast<bool>(failure) != static_cast<bool>(why)) {
    device_state(device).failed.fetch_add(why ? 1 : -1, std::memory_order_relaxed);
  }
  failure = std::move(why);
}

Node::~Node() {
  fail(nullptr);
  if (any_last_reference(inputs)) {
    release_iteratively(inputs);
  }
}

int64_t op_count(const Node& node) {
  if (node.op == getitem_op() || node.op == seed_op()) {
    return 0;
  }
  return node.op->foreach ? static_cast<int64_t>(node.signature->outs.size()) : 1;
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
  item->signature = node->signature;
  item->origin = node->origin;
  item->inputs.push_back(node);
  return item;
}

NodePtr make_leaf(BufferPtr buffer, SignaturePtr signature, int8_t device) {
  auto node = c10::make_intrusive<Node>();
  node->sharding.store(buffer->sharding, std::memory_order_relaxed);
  node->buffer = std::move(buffer);
  node->signature = std::move(signature);
  node->device = device;
  node->origin = current_origin();
  return node;
}

}  // namespace torch_xla
