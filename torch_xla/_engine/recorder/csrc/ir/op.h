// Properties of one operator overload: its schema, read once, and how each argument is recorded.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <atomic>
#include <string>
#include <unordered_set>
#include <vector>

#include "support/counters.h"
#include "support/hash.h"
#include "support/lazy_pointer.h"

namespace torch_xla {

enum class ArgKind : uint8_t {
  kTensor,      // Tensor, Tensor?
  kTensorList,  // Tensor[], Tensor?[]
  kScalar,      // a number; an operand of the graph unless it is 0, 1 or -1
  kScalars,     // a list of numbers
  kDevice,      // the device of a factory's result; not recorded
  kGenerator,   // a torch.Generator; one of another device makes the op run on the CPU
  kDtype,       // a ScalarType
  kIgnored,     // layout, memory format, pinning: meaningless on xla
  kAttribute,   // a constant of the graph, by value
};

// How an op that reads or writes a slice of one dimension specifies it.
enum class RangeKind : uint8_t {
  kNone,
  kSlice,   // by start, end and step
  kLength,  // by start and length
  kIndex    // by an index
};

// Never destroyed: Nodes point to it.
struct Op {
  std::string name;  // aten::add.Tensor
  c10::OperatorHandle handle;
  std::vector<ArgKind> kinds;
  std::vector<std::string> arg_names;
  Key key;  // hash of the name
  Counter* recorded;
  bool random = false;
  bool is_view = false;
  bool may_overlap = false;  // a view op whose result can map several elements to one memory location
  bool returns_list = false;
  bool foreach = false;           // an op on lists of tensors, element by element
  bool takes_device = false;      // an argument selects the device of the result
  bool uniform = false;           // in place: writes the same value to all elements
  bool converts_numbers = false;  // numbers become elements of the result, and must fit its dtype
  bool pointwise = false;         // an elementwise aten op, and its variants
  bool cpu_indices = false;       // the second argument, a list of indices, may be on the CPU, as on other devices
  bool decomposes = false;        // its rule uses a matrix decomposition, which the platform may lack
  RangeKind range_kind = RangeKind::kNone;
  uint8_t start =
      0;  // for a slicing op: index of the argument that is the start; the argument before it is the dimension
  // Returns whether only the CPU can run a call, because the result's shape depends on values; null: never.
  bool (*needs_cpu)(c10::ArrayRef<c10::IValue> arguments) = nullptr;
  // Of an op that decomposes: whether the platform can compile it; -1 before the first call.
  mutable std::atomic<int8_t> supported{-1};
  // For in-place and out= variants: the recorded functional op. The written argument is the first, or the last.
  const Op* functional = nullptr;

  Op(const c10::OperatorHandle& handle, const std::unordered_set<std::string>& static_args, bool random);
};

std::string qualified_name(const c10::OperatorName& name);

// Returns whether a number is a constant of the graph: 0, 1 and -1, which let the compiler simplify, and bools. All
// other numbers are operands, so a changing learning rate does not recompile.
bool is_constant_number(const c10::IValue& value);
// If disabled, 0, 1 and -1 are operands too.
void set_constant_numbers(bool enabled);

// Pseudo-ops without a torch schema.
const Op* getitem_op();  // selects result attrs[0] of an op with several results
const Op* seed_op();     // the random seed, an integer operand

// The table of recorded ops, filled at registration. find_op returns null for an op that is not recorded.
const Op* find_op(const std::string& name);
using OpPointer = LazyPointer<const Op, &find_op>;
Op* add_op(const std::string& name, const std::unordered_set<std::string>& static_args, bool random);
// Marks a recorded op as one that uses a matrix decomposition. Call it before add_variant().
void mark_decomposition(const std::string& name);
const Op* add_variant(const std::string& name, const Op* functional);
std::vector<const Op*> all_ops();

}  // namespace torch_xla
