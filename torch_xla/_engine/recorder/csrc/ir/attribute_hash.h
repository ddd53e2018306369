// What of a call's arguments goes into the key of its Node.
#pragma once

#include <ATen/core/TensorBase.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Scalar.h>

#include "ir/node.h"
#include "ir/op.h"
#include "support/hash.h"

namespace torch_xla {

// Words that tell the kinds of hashed things apart.
enum Tag : uint64_t {
  kNone = 0x101,
  kInts,
  kList,
  kBaked,
  kOperand,
  kInt,
  kDouble,
  kBool,
  kComplex,
  kString,
  kOther,
  kDefaultDtype,
  kUniform,
  kStart
};

void mix_attribute(Key& key, const c10::IValue& value);

// A number that may be an operand: then its kind only.
inline void mix_scalar(Key& key, const c10::IValue& value) {
  if (is_constant_number(value)) {
    key.mix(kBaked);
    mix_attribute(key, value);
  } else {
    key.mix(kOperand + (value.isInt() ? 1ull << 32 : value.isDouble() ? 2ull << 32 : 3ull << 32));
  }
}

// Whether all numbers of a list are one operand: an optimizer gives a list of as many equal numbers as it has tensors.
bool is_uniform(c10::ArrayRef<c10::IValue> numbers);

// torch's default dtype, when the node was recorded: in the key where it is not float32. After the arguments.
inline void mix_default_dtype(Node& node, at::ScalarType dtype) {
  if (C10_UNLIKELY(dtype != at::kFloat)) {
    node.default_dtype = dtype;
    node.key.mix(kDefaultDtype + (static_cast<uint64_t>(dtype) << 32));
  }
}

// The Python number that torch wrapped into a tensor.
c10::IValue read_wrapped_number(const at::Tensor& t);

// Raises torch's error for a number that does not fit the dtype.
void check_fits(const at::Scalar& number, at::ScalarType dtype);

}  // namespace torch_xla
