// The tensor behind an at::Tensor on xla: no storage, the strides of a contiguous tensor, a Node for its value.
//
//   XlaTensor ---------------------------> Node              a tensor of its own
//   XlaTensor ---> Alias ---> Node                           a tensor that has views: the Alias stands for the memory
//   XlaTensor ---> Alias, ViewOp (-> ViewOp ...), Node           a view: the steps from the Alias's value to its own
//
// Writing in place never changes a Node. A write to a tensor without an Alias gives it another Node; a write to a view
// scatters the new value back through the view's steps into a new value of the Alias, and counts up its version; the
// other tensors of that Alias notice the version when they are read next and replay their steps.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <typeinfo>

#include "ir/node.h"
#include "runtime/device.h"

namespace torch_xla {

// One step from a tensor to a view of it: an op, its arguments, and which of its results. Never changes, but for the id
// that it is given once.
struct ViewOp final : c10::intrusive_ptr_target {
  c10::intrusive_ptr<ViewOp> parent;  // null: the step starts at the Alias's value
  const Op* op = nullptr;
  Key key;                 // of a node that takes this step
  bool has_start = false;  // as in Node
  c10::SmallVector<c10::IValue, 4> attrs;
  SignaturePtr from;  // of the tensor that is viewed
  uint32_t from_out = 0;
  SignaturePtr signature;
  uint32_t out = 0;
  uint32_t origin = 0;
  at::ScalarType default_dtype = at::kFloat;  // torch's, when the step was recorded: it is in the key
  bool overlaps = false;                      // several elements of the view are one element of what it views
  uint64_t id = 0;                            // of the tensors that show this view, once asked for; device mutex

  // The view's value, given that of what it views.
  NodePtr apply(const NodePtr& base) const;
  // The value of what is viewed after the view was set to `value`, by a write that comes from `written`.
  NodePtr scatter(const NodePtr& base, const NodePtr& value, uint32_t written) const;
  // Whether each element of what is viewed is in the view.
  bool covers() const;
};
using ViewPtr = c10::intrusive_ptr<ViewOp>;

// How a view was made, from the memory on. Holds no value.
struct ViewChain {
  std::vector<ViewPtr> ops;
};

// The same view of another tensor, of the shape and dtype that the memory had.
at::Tensor replay(const ViewChain& steps, at::Tensor base_tensor);

// What tensors that share memory on other devices share here. Guarded by the device's mutex; owned by its tensors.
struct Alias final : c10::intrusive_ptr_target {
  NodePtr value;
  uint64_t version = 0;
  uint64_t epoch = 0;        // scratch of one collection
  uint64_t id = 0;           // of the tensors that show all of it, once asked for
  uint64_t base_tensor = 0;  // a number that no other Alias has or had, once asked for
  c10::Storage storage;      // what untyped_storage() shows, once asked for
};
using AliasPtr = c10::intrusive_ptr<Alias>;

struct DeferredRelease {
  std::vector<NodePtr> nodes;
  std::vector<AliasPtr> aliases;
  std::vector<ViewPtr> views;
};

// Owned by its at::Tensor. While it lives it is linked into its device's list of live tensors, in creation order, so
// that the same step gives the same graph.
class XlaTensor final : public c10::TensorImpl {
 public:
  explicit XlaTensor(NodePtr node);
  XlaTensor(AliasPtr alias, ViewPtr view, NodePtr node, uint64_t version);
  // A view of `base`: `node` is its value, one step from the base's.
  XlaTensor(XlaTensor& base, NodePtr node, bool overlaps);
  ~XlaTensor() override;

  int8_t device_index() const { return index_; }
  // The present value.
  NodePtr value();
  // Sets the value in place, with all that this means for other tensors of the Alias. Same shape and dtype.
  // With `uniform` all elements of the value are equal, so that elements of an expanded tensor may share their place.
  // Raises torch's error for elements that share their place otherwise.
  void write(NodePtr value, bool uniform = false);
  // Sets the value in place to the same value, laid out in another way.
  void reshard(NodePtr value);
  // A view of this tensor: `node` is its value, one step from ours.
  at::Tensor make_view(NodePtr node, bool overlaps);
  // Another tensor of the same memory, showing what this one shows (detach, alias).
  at::Tensor make_alias() { return at::Tensor(make_alias_impl()); }
  // The tensor that shows the whole memory: this one unless it is a view.
  at::Tensor base_tensor();
  // Becomes what `other` is, memory and device included (set_, .data =, transpose_).
  void take_over(XlaTensor& other);
  // Gets a value of its own, of whatever shape (resize_).
  void reset_value(NodePtr value);

  bool is_view() const { return view_ || unkept_; }
  // Empty for a tensor that is no view.
  ViewChain steps();

  // A number from 1 that all tensors have which show the same elements of the same memory (a tensor, its .data and
  // detach()), and no other tensor of the process. Given out when it is first asked for.
  uint64_t id();
  // The number of the memory that this tensor shares with others; 0 if it shares none.
  uint64_t memory_id();
  // There is no storage; but programs that look for tensors that share memory compare storages by address and size. So
  // this makes one, whose size is true and whose address is unique to the memory, and points to nothing. From then on
  // the tensor and views made of it have it, and data_ptr() is that address.
  const c10::Storage& storage() const override;

  // For collecting a graph, device mutex held: gives up what can be computed again, and appends one entry to `held` per
  // reference that stays. What is given up goes to `released`, to be freed without the mutex.
  //
  //   this tensor                                        gives up                        holds
  //   has no Alias                                       -                               its value
  //   is a view, no other tensor has the Alias           ViewOp, Alias: it is its own    its value, recomputed if stale
  //   is a view whose value is pending or stale          its value                       the Alias's value
  //   the same, but `walk` (an epoch, or 0) computes it  -                               the Alias's value
  //   is a view whose value is a buffer                  -                               that, and the Alias's value
  //   is the memory's first, written to through a view   its old value, for the Alias's  the Alias's value, twice
  //
  // The Alias's value is held once, by the first of its tensors.
  void release_recomputable(uint64_t epoch, uint64_t walk, std::vector<NodePtr>& held, DeferredRelease& released);

  XlaTensor* next = nullptr;  // device mutex
  XlaTensor* previous = nullptr;

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                         bool allow_metadata_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                         bool allow_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& other) override;

  // The value of the floating-point tensor that was made last, of those that live; null without one. What is to run
  // after everything that has been recorded so far reads it.
  static NodePtr latest_float_value(int8_t device);

 private:
  // Asked of views only. A tensor that is none is contiguous; so is one that was the view of a memory which no other
  // tensor shows any more (settle).
  c10::SymBool sym_is_contiguous_custom(at::MemoryFormat format) const override;
  const char* tensorimpl_type_name() const override { return "XlaTensor"; }
  struct Unlinked {};
  XlaTensor(NodePtr node, Unlinked);  // to be linked once it is complete: collections must not see it before
  void set_first_sizes(at::IntArrayRef sizes);
  void link();  // into its device's list of live tensors
  void link_locked(DeviceState& state);
  void unlink();  // out of it
  // Becomes a tensor of its own on the value's device, another one than its own.
  void move_to(const NodePtr& value);
  void set_shape_from(const Shape& shape);
  void ensure_alias();  // makes the Alias; device mutex held
  void ensure_view();   // makes the ViewOp; device mutex held
  c10::intrusive_ptr<XlaTensor> make_alias_impl() const;
  // A view is an inference tensor if what it views is one, wherever it is made: as views of other devices, which take
  // over the key set.
  void share_mode_with(XlaTensor& view, bool detached = false);
  bool is_stale() const { return !node_ || version_ != alias_->version; }  // device mutex held, alias_ set
  NodePtr replay() const;
  // What value() returns, device mutex held; what it replaces goes to `before`.
  const NodePtr& current_value(NodePtr& before);
  bool can_scatter_through_views(bool uniform) const;
  // What write() does with the mutex held; what it replaces goes to `before`.
  void set_value(NodePtr value, uint32_t origin, bool keep_sharding, NodePtr (&before)[2]);
  size_t memory_bytes() const;

  int8_t index_;  // of the device; changes only where it adopts a tensor of another one
  NodePtr node_;  // null only for a view that has to be computed again
  AliasPtr alias_;
  ViewPtr view_;         // while unkept_: that of what is viewed
  bool unkept_ = false;  // a view that nobody viewed, wrote to or collected yet: node_ itself is the step
  bool overlaps_ = false;
  uint64_t version_ = 0;  // of the Alias, when node_ was its value
  uint64_t id_ = 0;       // while there is no Alias
};

// The XlaTensor of `t`; null if `t` is no dense xla tensor.
inline XlaTensor* maybe_xla(const at::Tensor& t) {
  // The key alone does not say it: the meta tensors behind torch's fake tensors of device type xla have it too, and
  // sparse tensors of device type xla are made by torch itself.
  if (!t.defined() || !t.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::XLA)) {
    return nullptr;
  }
  c10::TensorImpl* impl = t.unsafeGetTensorImpl();
  return C10_LIKELY(typeid(*impl) == typeid(XlaTensor)) ? static_cast<XlaTensor*>(impl) : nullptr;
}

inline at::Tensor make_tensor(NodePtr node) { return at::Tensor(c10::make_intrusive<XlaTensor>(std::move(node))); }

}  // namespace torch_xla
