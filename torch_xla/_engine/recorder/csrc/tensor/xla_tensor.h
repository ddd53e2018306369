// The TensorImpl of an at::Tensor on xla: no storage, contiguous strides, and a Node for its value.
//
//  XlaTensor ---------------------------> Node         a tensor that shares no memory
//  XlaTensor ---> Alias ---> Node                      a tensor with views: the Alias represents the memory
//  XlaTensor ---> Alias, ViewOp (-> ViewOp ...), Node  a view: the ViewOps lead from the Alias's value to its own
//
// An in-place write never changes a Node. A write to a tensor without an Alias replaces its Node. A write to a view
// scatters the new value back through the view chain into a new value of the Alias, and increments its version; the
// other tensors of that Alias compare versions when they are next read, and replay their view chains.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <typeinfo>

#include "ir/node.h"
#include "runtime/device.h"

namespace torch_xla {

// One view operator: op, arguments, and index of the result. Immutable, except for the id, which is assigned once.
struct ViewOp final : c10::intrusive_ptr_target {
  c10::intrusive_ptr<ViewOp> parent;  // null: the operand is the Alias's value
  const Op* op = nullptr;
  Key key;                 // of a Node for this op
  bool has_start = false;  // as in Node
  c10::SmallVector<c10::IValue, 4> attrs;
  OutputSpecPtr from;  // of the viewed tensor
  uint32_t from_out = 0;
  OutputSpecPtr output_spec;
  uint32_t out = 0;
  uint32_t origin = 0;
  at::ScalarType default_dtype = at::kFloat;  // torch's at recording time; in the key
  bool overlaps = false;                      // several elements of the view map to one element of its operand
  uint64_t id = 0;                            // of the tensors that are this view, assigned on demand; device mutex

  // Returns the view's value, given the value of its operand.
  NodePtr apply(const NodePtr& base) const;
  // Returns the operand's value after the view was set to `value`. `written` is the source location of the write.
  NodePtr scatter(const NodePtr& base, const NodePtr& value, uint32_t written) const;
  // Returns whether the view contains each element of its operand.
  bool covers() const;
};
using ViewPtr = c10::intrusive_ptr<ViewOp>;

// The view operators that lead from the base tensor to a view. Holds no value.
struct ViewChain {
  std::vector<ViewPtr> ops;
};

// Applies a view chain to another tensor, of the shape and dtype of the original base.
at::Tensor replay(const ViewChain& chain, at::Tensor base);

// The state shared by tensors that would share memory on other devices. Guarded by the device's mutex; owned by its
// tensors.
struct Alias final : c10::intrusive_ptr_target {
  NodePtr value;
  uint64_t version = 0;
  uint64_t epoch = 0;       // scratch field of one collection
  uint64_t id = 0;          // of the tensors that are the full base, assigned on demand
  uint64_t storage_id = 0;  // an id that no other Alias has or had, assigned on demand
  c10::Storage storage;     // returned by untyped_storage(), created on demand
};
using AliasPtr = c10::intrusive_ptr<Alias>;

struct DeferredRelease {
  std::vector<NodePtr> nodes;
  std::vector<AliasPtr> aliases;
  std::vector<ViewPtr> views;
};

// Owned by its at::Tensor. While alive it is linked into its device's list of live tensors, in creation order, so that
// the same step produces the same graph.
class XlaTensor final : public c10::TensorImpl {
 public:
  explicit XlaTensor(NodePtr node);
  XlaTensor(AliasPtr alias, ViewPtr view, NodePtr node, uint64_t version);
  // Makes a view of `base`: `node` is its value, one view op away from the base's.
  XlaTensor(XlaTensor& base, NodePtr node, bool overlaps);
  ~XlaTensor() override;

  int8_t device_index() const { return index_; }
  // Returns the current value, replaying the view chain if it is stale.
  NodePtr value();
  // Sets the value in place, also for other tensors of the Alias. Shape and dtype stay the same. If `uniform`, all
  // elements of the value are equal, so that elements of an expanded tensor may share a location. Raises torch's error
  // if elements share a location otherwise.
  void write(NodePtr value, bool uniform = false);
  // Sets the value in place to the same value with another sharding.
  void reshard(NodePtr value);
  // Returns a view of this tensor: `node` is its value, one view op away from this tensor's.
  at::Tensor make_view(NodePtr node, bool overlaps);
  // Returns another tensor with the same memory and view (detach, alias).
  at::Tensor make_alias() { return at::Tensor(make_alias_impl()); }
  // Returns the tensor that covers the full memory: equivalent to this one unless it is a view.
  at::Tensor base_tensor();
  // Becomes equivalent to `other`, including memory and device (set_, .data =, transpose_).
  void take_over(XlaTensor& other);
  // Replaces the value by one of any shape, no longer shared with other tensors (resize_).
  void reset_value(NodePtr value);

  bool is_view() const { return view_ || view_op_pending_; }
  // Returns whether both tensors represent the same memory.
  bool shares_memory_with(const XlaTensor& other) const;
  // Return, with the device mutex held, a number that tensors have in common if they share memory, and the value of a
  // tensor that is not a view.
  uint64_t memory_locked() const;
  const NodePtr& base_value_locked() const { return alias_ ? alias_->value : node_; }
  // Returns memory_locked(), with the device mutex not held.
  uint64_t memory() const;
  // Returns whether only this tensor and its memory refer to its value `node`, so that a program may overwrite it. The
  // device mutex is held.
  bool owns_alone_locked(const NodePtr& node) const;
  // Returns whether another tensor has its memory, such as a view; the device mutex is held.
  bool is_memory_shared_locked() const { return alias_ && alias_.use_count() > 1; }
  // Returns a number that identifies this tensor among all that the device ever had.
  uint64_t serial() const { return serial_; }
  // Returns the view chain; empty for a tensor that is not a view.
  ViewChain view_chain();

  // Returns an id, from 1, common to all tensors with the same elements of the same memory (a tensor, its .data and
  // detach()), and unique to them in the process. Assigned on demand.
  uint64_t id();
  // Returns the id of the memory that this tensor shares with others; 0 if it shares none.
  uint64_t storage_id();
  // Returns a storage for identification. xla tensors have none, but programs compare storages by address and size to
  // find tensors that share memory. The storage has the true size and an address unique to the memory, which points
  // nowhere. From then on data_ptr() of the tensor and its views is that address.
  const c10::Storage& storage() const override;

  // For collecting a graph, with the device mutex held: releases what can be recomputed, and appends one entry to
  // `held` per remaining reference. Released objects go to `released`, to be destroyed without the mutex.
  //
  //  this tensor                                        releases                        holds
  //  has no Alias                                       -                               its value
  //  is a view, no other tensor has the Alias           ViewOp, Alias: it is unshared   its value, recomputed if stale
  //  is a view whose value is pending or stale          its value                       the Alias's value
  //  the same, but `walk` (an epoch, or 0) computes it  -                               the Alias's value
  //  is a view whose value is a buffer                  -                               that, and the Alias's value
  //  is the base tensor, written to through a view      its old value, for the Alias's  the Alias's value, twice
  //
  // The Alias's value is listed once, by the first of its tensors.
  void release_recomputable(uint64_t epoch, uint64_t walk, std::vector<NodePtr>& held, DeferredRelease& released);

  XlaTensor* next = nullptr;  // device mutex
  XlaTensor* previous = nullptr;

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                         bool allow_metadata_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                         bool allow_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& other) override;

  // Returns the value of the newest live floating-point tensor; null if there is none. An operation that must run after
  // everything recorded so far reads it.
  static NodePtr latest_float_value(int8_t device);

 private:
  // Called for views only. Other tensors are contiguous, as is a former view whose memory is no longer shared
  // (release_recomputable).
  c10::SymBool sym_is_contiguous_custom(at::MemoryFormat format) const override;
  const char* tensorimpl_type_name() const override { return "XlaTensor"; }
  struct Unlinked {};
  XlaTensor(NodePtr node, Unlinked);  // to be linked once it is complete: collections must not see it before
  void init_sizes(at::IntArrayRef sizes);
  void link();  // into its device's list of live tensors
  void link_locked(DeviceState& state);
  void unlink();  // out of it
  // Moves to the device of `value`, which differs from the current one, as an unshared tensor.
  void move_to(const NodePtr& value);
  void set_shape_from(const Shape& shape);
  void ensure_alias();  // device mutex held
  void ensure_view();   // device mutex held
  c10::intrusive_ptr<XlaTensor> make_alias_impl() const;
  // Makes a view of an inference tensor an inference tensor, wherever it is created. Views on other devices inherit it
  // with the key set.
  void share_inference_mode(XlaTensor& view, bool detached = false);
  bool is_stale() const { return !node_ || version_ != alias_->version; }  // device mutex held, alias_ set
  NodePtr replay() const;
  // Returns the current value with the device mutex held; the replaced Node goes to `before`.
  const NodePtr& current_value(NodePtr& before);
  bool can_scatter_through_views(bool uniform) const;
  // Implements write() with the mutex held; replaced Nodes go to `before`.
  void set_value(NodePtr value, uint32_t origin, bool keep_sharding, NodePtr (&before)[2]);
  size_t storage_bytes() const;

  int8_t index_;  // device index; changes only if the tensor takes over a tensor of another device
  NodePtr node_;  // null only for a view that has to be recomputed
  AliasPtr alias_;
  ViewPtr view_;  // while view_op_pending_: that of the operand
  bool view_op_pending_ =
      false;  // a view that was not yet viewed, written to or collected: node_ itself is the view op
  bool overlaps_ = false;
  uint64_t version_ = 0;  // the Alias's version when node_ was its value
  uint64_t id_ = 0;       // used while there is no Alias
  uint64_t serial_ = 0;   // the number of tensors linked before it
};

// Returns the XlaTensor of `t`; null if `t` is not a dense xla tensor.
inline XlaTensor* maybe_xla(const at::Tensor& t) {
  // The dispatch key does not suffice: the meta tensors behind torch's fake tensors of device type xla have it too, and
  // torch itself makes the sparse tensors of device type xla.
  if (!t.defined() || !t.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::XLA)) {
    return nullptr;
  }
  c10::TensorImpl* impl = t.unsafeGetTensorImpl();
  return C10_LIKELY(typeid(*impl) == typeid(XlaTensor)) ? static_cast<XlaTensor*>(impl) : nullptr;
}

// Writes to a view in which elements overlap, or that is derived from such a view, by writing to the base's elements.
// Raises the CPU's error for calls that the CPU rejects. For overlaps other than those of expand(), where the CPU's
// result depends on its loop order, accepts only unambiguous writes. `uniform`: all elements of `value` are equal.
// Defined in dispatch/strided_layout.cpp, because it records ops.
void write_strided(XlaTensor& x, NodePtr value, bool uniform);

inline at::Tensor make_tensor(NodePtr node) { return at::Tensor(c10::make_intrusive<XlaTensor>(std::move(node))); }

}  // namespace torch_xla
