// What the recorder knows of one operator overload: its schema read once, and how each argument is treated.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <unordered_set>
#include <vector>

#include "support/counters.h"
#include "support/hash.h"

namespace torch_xla {

enum class ArgKind : uint8_t {
  kTensor,      // Tensor, Tensor?
  kTensorList,  // Tensor[], Tensor?[]
  kScalar,      // a number that is an operand of the graph unless it is 0, 1 or -1
  kScalars,     // a list of such
  kDevice,      // where a factory puts its result; not part of the graph
  kGenerator,   // a torch.Generator: the op then runs on the CPU, with that generator
  kDtype,       // a ScalarType
  kIgnored,     // layout, memory format, pinning: nothing of it exists on xla
  kAttribute,   // part of the graph by value
};

// How an op that reads or writes a part of one dimension tells which.
enum class PartForm : uint8_t {
  kNone,
  kSlice,   // by start, end and step
  kLength,  // by start and length
  kIndex    // by an index
};

// Lives as long as the process: Nodes point to it.
struct Op {
  std::string name;  // aten::add.Tensor
  c10::OperatorHandle handle;
  std::vector<ArgKind> kinds;
  std::vector<std::string> arg_names;
  Key key;  // of the name
  Counter* recorded;
  bool random = false;
  bool is_view = false;
  bool may_overlap = false;  // a view op whose result can have several elements in one place
  bool returns_list = false;
  bool foreach = false;           // of lists of tensors, element by element
  bool takes_device = false;      // an argument says where the result is made
  bool uniform = false;           // in place: all elements that it writes are equal
  bool converts_numbers = false;  // its numbers become elements of the result, and must fit its dtype
  bool pointwise = false;         // of torch's, element by element; and its forms
  bool cpu_indices = false;       // the second argument, a list of indices, may be on the CPU, as on other devices
  PartForm part = PartForm::kNone;
  uint8_t start = 0;  // with a part: the argument that says where it starts; the one before says in which dimension
  // Calls that only the CPU can answer, because the result's shape depends on values; null: none.
  bool (*needs_cpu)(c10::ArrayRef<c10::IValue> arguments) = nullptr;
  // For the in-place and out= forms of a recorded op: that op. The first argument, or the last, is what is written to.
  const Op* functional = nullptr;

  Op(const c10::OperatorHandle& handle, const std::unordered_set<std::string>& baked, bool random);
};

std::string qualified_name(const c10::OperatorName& name);

// 0, 1 and -1 let the compiler leave things out, so they are constants of the graph, and so are bools. All other
// numbers are operands: a changing learning rate compiles once.
bool is_constant_number(const c10::IValue& value);
// With false, 0, 1 and -1 are operands too.
void set_constant_numbers(bool enabled);

// The ops that no schema stands for.
const Op* getitem_op();  // result number attrs[0] of an op with several
const Op* seed_op();     // the random seed, an integer operand

// The ops by name, made at registration; null for an op that is not recorded.
const Op* find_op(const std::string& name);
Op* add_op(const std::string& name, const std::unordered_set<std::string>& baked, bool random);
const Op* add_form(const std::string& name, const Op* functional);
std::vector<const Op*> all_ops();

}  // namespace torch_xla
