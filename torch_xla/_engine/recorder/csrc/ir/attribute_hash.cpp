#include "ir/attribute_hash.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstring>

#include "ir/op.h"

namespace torch_xla {
namespace {

uint64_t bits(double value) {
  uint64_t out;
  std::memcpy(&out, &value, sizeof(out));
  return out;
}

}  // namespace

void mix_attribute(Key& key, const c10::IValue& value) {
  if (value.isNone()) {
    key.mix(kNone);
  } else if (value.isInt()) {
    key.mix(kInt);
    key.mix(static_cast<uint64_t>(value.toInt()));
  } else if (value.isBool()) {
    key.mix(kBool + (value.toBool() ? 1ull << 32 : 0));
  } else if (value.isDouble()) {
    key.mix(kDouble);
    key.mix(bits(value.toDouble()));
  } else if (value.isComplexDouble()) {
    key.mix(kComplex);
    key.mix(bits(value.toComplexDouble().real()));
    key.mix(bits(value.toComplexDouble().imag()));
  } else if (value.isString()) {
    key.mix(kString);
    key.mix(std::string_view(value.toStringRef()));
  } else if (value.isList()) {
    const auto list = value.toListRef();
    const bool ints = !list.empty() && list[0].isInt();
    key.mix((ints ? kInts : kList) + (static_cast<uint64_t>(list.size()) << 32));
    for (const auto& element : list) {
      if (ints && element.isInt()) {
        key.mix(static_cast<uint64_t>(element.toInt()));
      } else {
        mix_attribute(key, element);
      }
    }
  } else {
    TORCH_CHECK(false, "torch_xla cannot record an argument of type ", value.tagKind());
  }
}

c10::IValue convert_large_unsigned(const c10::IValue& value, at::ScalarType dtype) {
  const uint64_t number = value.toScalar().to<uint64_t>();
  return at::isIntegralType(dtype, /*includeBool=*/true) ? c10::IValue(static_cast<int64_t>(number))
                                                         : c10::IValue(static_cast<double>(number));
}

bool is_uniform(c10::ArrayRef<c10::IValue> numbers) {
  if (numbers.size() < 2 || is_constant_number(numbers[0])) {
    return false;
  }
  const auto is_first = [&](const c10::IValue& number) {
    return numbers[0].isDouble() ? number.isDouble() && bits(number.toDouble()) == bits(numbers[0].toDouble())
                                 : numbers[0].isInt() && number.isInt() && number.toInt() == numbers[0].toInt();
  };
  return std::all_of(numbers.begin() + 1, numbers.end(), is_first);
}

c10::IValue read_wrapped_number(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kDouble:
      return *static_cast<const double*>(t.const_data_ptr());
    case at::kLong:
      return *static_cast<const int64_t*>(t.const_data_ptr());
    case at::kBool:
      return *static_cast<const bool*>(t.const_data_ptr());
    default:
      return t.item();
  }
}

}  // namespace torch_xla
