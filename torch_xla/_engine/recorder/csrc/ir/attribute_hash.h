// Hashes a call's arguments into the key of its Node. dispatch/record.cpp lists what a key contains.
#pragma once

#include <ATen/core/TensorBase.h>
#include <ATen/core/ivalue.h>

#include "ir/node.h"
#include "ir/op.h"
#include "support/hash.h"

namespace torch_xla {

// Tag words that distinguish arguments of different types in the hash.
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
  kStart,
  kUnsigned
};

void mix_attribute(Key& key, const c10::IValue& value);

// Returns whether a number is an integer of 2**63 or more, which IValue holds as unsigned.
inline bool is_large_unsigned(const c10::IValue& value) { return C10_UNLIKELY(value.isUnsigned() && !value.isInt()); }

// Returns a large unsigned number as torch converts it: to a double among floating-point tensors, else modulo 2**64.
c10::IValue convert_large_unsigned(const c10::IValue& value, at::ScalarType dtype);

// Mixes in a number: its value if it is a constant of the graph, only its type if it is an operand.
inline void mix_scalar(Key& key, const c10::IValue& value) {
  if (is_constant_number(value)) {
    key.mix(kBaked);
    mix_attribute(key, value);
  } else {
    key.mix(kOperand + (value.isInt() ? 1ull << 32 : value.isDouble() ? 2ull << 32 : 3ull << 32));
  }
}

// Returns whether all numbers of a list are one operand: an optimizer passes one number per tensor, all equal.
bool is_uniform(c10::ArrayRef<c10::IValue> numbers);

// Mixes in torch's default dtype at recording time, if it is not float32. Call it after the arguments are mixed in.
inline void mix_default_dtype(Node& node, at::ScalarType dtype) {
  if (C10_UNLIKELY(dtype != at::kFloat)) {
    node.default_dtype = dtype;
    node.key.mix(kDefaultDtype + (static_cast<uint64_t>(dtype) << 32));
  }
}

// Returns the Python number that torch wrapped in a 0-d tensor.
c10::IValue read_wrapped_number(const at::Tensor& t);

}  // namespace torch_xla
