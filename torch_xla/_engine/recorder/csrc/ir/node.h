// The graph that is recorded: one Node per tensor value.
//
//   at::Tensor -> XlaTensor -> Node -> Node ...   pending: how to compute the value
//                              Node -> Buffer     materialized: the value itself
//
// A Node is pending until the executor gives it a Buffer (materialize), and never goes back. Materializing drops the
// operands, so a value keeps alive only what is still needed to compute it. A pending Node whose program could not be
// compiled or run has a Failure; it stays pending, and may be tried again. What a recorder reads of a Node without a
// lock (signature, device, key) never changes; op, inputs, attrs, buffer and failure are touched under the device's
// execution lock only (runtime/execution_lock.h; held from collect() to launch()).
//
// An op with several results is a Node that is no value, with one "getitem" Node per result on top of it.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>
#include <c10/util/accumulate.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <vector>

#include "support/hash.h"

struct _object;  // PyObject

namespace torch_xla {

struct Op;

struct Shape {
  at::ScalarType dtype = at::ScalarType::Undefined;  // Undefined: this result does not exist (an optional one)
  c10::SmallVector<int64_t, 5> sizes;
  uint64_t hash = 0;

  Shape() = default;
  Shape(at::ScalarType dtype, at::IntArrayRef sizes);
  int64_t elements() const { return c10::multiply_integers(sizes); }
};

// Shapes and dtypes of an op's results. Shared by all nodes of one kind; made by shape inference, never changed.
struct OutputSpec final : c10::intrusive_ptr_target {
  c10::SmallVector<Shape, 1> outs;
  bool is_list = false;  // the op returns one Tensor[]
};
using SignaturePtr = c10::intrusive_ptr<OutputSpec>;
SignaturePtr make_signature(at::ScalarType dtype, at::IntArrayRef sizes);

// Owns one reference to a jax.Array. May die on any thread, with or without the GIL: without it the reference is parked
// and dropped by the next thread that holds the GIL (drain_parked_buffers). At interpreter exit it is leaked on
// purpose. While it lives it is counted in its device's memory (runtime/memory_stats.h).
struct Buffer final : c10::intrusive_ptr_target {
  Buffer(_object* array, int8_t device, int64_t bytes, uint32_t provenance, uint32_t sharding);  // steals the reference
  ~Buffer() override;
  void donate();  // a result takes over its memory: it counts no longer
  _object* const array;
  const int64_t bytes;
  const uint32_t provenance;  // see runtime/memory_stats.h
  const uint32_t sharding;    // see dispatch/sharding.h
  const int8_t device;

 private:
  friend std::vector<struct BufferEntry> list_buffers(int8_t device);
  void count();
  Buffer* before_ = nullptr;  // guarded by the mutex of the device's account
  Buffer* after_ = nullptr;
  bool counted_ = false;
};
using BufferPtr = c10::intrusive_ptr<Buffer>;
void drain_parked_buffers();  // GIL held
// Gives up a reference: at once on a thread that holds the GIL, else by the next that collects a graph.
void release_reference(_object* object);
void leak_buffers();  // from now on nothing of Python is released

// Why values could not be computed: an exception of Python's. Shared by the nodes that it befell; may die on any
// thread.
struct Failure final : c10::intrusive_ptr_target {
  explicit Failure(_object* error_) : error(error_) {}  // steals the reference
  ~Failure() override;
  _object* const error;
};
using FailurePtr = c10::intrusive_ptr<Failure>;

struct Node;
using NodePtr = c10::intrusive_ptr<Node>;

struct Node final : torch::CustomClassHolder {
  const Op* op = nullptr;  // null: materialized
  uint32_t out = 0;        // which of the signature's results this value is
  int8_t device = 0;
  bool has_start =
      false;  // the start of the part that op reads or writes is not in the key: see dispatch/slice_starts.h
  bool is_scatter = false;  // op is a view op: this is inputs[0] with the view of it set to inputs[1]
  at::ScalarType default_dtype =
      at::kFloat;            // torch's, when this was recorded: numbers have it where no tensor decides
  uint8_t computations = 0;  // by graphs of reads, whose results did not include it; under the execution lock
  uint64_t numbers = 0;      // bit i: schema argument i is a Tensor, but a Python number was given
  Key key;                   // op, attributes and input signatures; not which inputs they are
  SignaturePtr signature;
  c10::SmallVector<NodePtr, 3> inputs;
  c10::SmallVector<c10::IValue, 4> attrs;  // one per schema argument; a tensor is its position in inputs
  BufferPtr buffer;
  FailurePtr failure;                 // set: the last try to compute this value failed
  uint32_t origin = 0;                // see ir/source_location.h; stays when the node is materialized
  std::atomic<uint32_t> sharding{0};  // of the value, where it is known or wanted: see dispatch/sharding.h

  // Scratch of one traversal, valid where epoch is the traversal's; under the execution lock.
  uint64_t epoch = 0;
  uint32_t index = 0;
  uint32_t uses = 0;

  const Shape& shape() const { return signature->outs[out]; }
  bool pending() const { return op != nullptr; }
  void materialize(BufferPtr value);
  void fail(FailurePtr why);  // null: it is to be tried again
  ~Node() override;
};

// How many ops a Node counts as, towards the size limit: of lists, each element is one.
int64_t op_count(const Node& node);

// The number of a new traversal, which no node has.
uint64_t new_epoch();

// Result number `out` of a node with several.
NodePtr getitem_node(const NodePtr& node, uint32_t out);

NodePtr make_leaf(BufferPtr buffer, SignaturePtr signature, int8_t device);

}  // namespace torch_xla
