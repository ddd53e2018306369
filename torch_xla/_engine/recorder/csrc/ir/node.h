// The recorded graph: one Node per tensor value.
//
//  at::Tensor -> XlaTensor -> Node -> Node ...   pending: how to compute the value
//                             Node -> Buffer     materialized: the value itself
//
// A Node is pending until the executor gives it a Buffer (materialize); it never becomes pending again. Materializing
// drops the operands, so a value retains only what is still needed to compute it. A pending Node whose program failed
// to compile or run has a Failure; it stays pending, and a later sync may try again.
//
// Threading: output_spec, out, device and origin never change; any thread reads them without a lock. The thread that
// makes a Node reads and writes the other fields until the Node becomes the value of a tensor (make_tensor): another
// thread may then materialize it. From then on they are accessed only under the device's execution lock
// (runtime/execution_lock.h, held from collect() to launch()). Exception: ensure_view() reads the op of a view, under
// the device's mutex; collecting a graph calls it first.
//
// An operator with several results is a Node without a value, plus one "getitem" Node per result.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>
#include <c10/util/accumulate.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <vector>

#include "runtime/buffer.h"
#include "support/hash.h"

namespace torch_xla {

struct Op;

struct Shape {
  at::ScalarType dtype = at::ScalarType::Undefined;  // Undefined: an optional result that is absent
  c10::SmallVector<int64_t, 5> sizes;
  uint64_t hash = 0;

  Shape() = default;
  Shape(at::ScalarType dtype, at::IntArrayRef sizes);
  int64_t elements() const { return c10::multiply_integers(sizes); }
};

// Shapes and dtypes of an operator's results. Made by shape inference, immutable, shared by all nodes with the same
// inputs.
struct OutputSpec final : c10::intrusive_ptr_target {
  c10::SmallVector<Shape, 1> outs;
  bool is_list = false;  // the op returns one Tensor[]
};
using OutputSpecPtr = c10::intrusive_ptr<OutputSpec>;
OutputSpecPtr make_output_spec(at::ScalarType dtype, at::IntArrayRef sizes);

// Why values could not be computed: a Python exception, shared by all affected nodes. May be destroyed on any thread.
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
  uint32_t out = 0;        // index of this value among the results in output_spec
  int8_t device = 0;
  bool has_start = false;   // the start of the slice is not in the key: see ir/slice_range.h
  bool is_scatter = false;  // op is a view op; the value is inputs[0] with its view overwritten by inputs[1]
  at::ScalarType default_dtype = at::kFloat;  // torch's, at recording time: the dtype of numbers if no tensor decides
  uint8_t computations = 0;  // how many partial graphs computed it without returning it; under the execution lock
  uint64_t numbers = 0;      // bit i: schema argument i is a Tensor, but the call passed a Python number
  Key key;                   // op, attributes and input shapes, not which inputs: see dispatch/record.cpp
  OutputSpecPtr output_spec;
  c10::SmallVector<NodePtr, 3> inputs;
  c10::SmallVector<c10::IValue, 4> attrs;  // one per schema argument; a tensor argument is its index in inputs
  BufferPtr buffer;
  FailurePtr failure;                 // set if the last attempt to compute this value failed
  uint32_t origin = 0;                // see ir/source_location.h; stays after materialization
  std::atomic<uint32_t> sharding{0};  // known or requested sharding of the value: see ir/sharding.h

  // Scratch fields of one traversal, valid if epoch equals the traversal's; under the execution lock.
  uint64_t epoch = 0;
  uint32_t index = 0;
  uint32_t uses = 0;

  const Shape& shape() const { return output_spec->outs[out]; }
  bool pending() const { return op != nullptr; }
  void materialize(BufferPtr value);
  void fail(FailurePtr cause);  // null clears the failure, so that the value is computed again
  ~Node() override;
};

// Returns the number of ops that an op with these results counts as towards the graph size limit: foreach ops count
// once per element. Reads nothing that a Node loses when it is materialized.
int64_t op_count(const Op& op, const OutputSpec& results);

// Returns an id for a new traversal, different from all earlier ones.
uint64_t new_epoch();

// Returns a Node for result `out` of a Node with several results.
NodePtr getitem_node(const NodePtr& node, uint32_t out);

NodePtr make_leaf(BufferPtr buffer, OutputSpecPtr output_spec, int8_t device);

}  // namespace torch_xla
