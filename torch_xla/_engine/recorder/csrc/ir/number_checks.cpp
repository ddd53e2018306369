#include "ir/number_checks.h"

#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>
#include <torch/headeronly/version.h>

#include <limits>
#include <string>
#include <type_traits>

namespace torch_xla {

namespace {

// Whether torch raises if a bound of clamp overflows an integer dtype. Later releases raise only if no value of the
// dtype is within the bound.
constexpr bool kBoundsMustFit = TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 15;

// Raises torch's error if the number overflows the dtype.
void check_fits(const at::Scalar& number, at::ScalarType dtype) {
  switch (dtype) {
#define TORCH_XLA_CHECK_FITS(type, name) \
  case at::ScalarType::name:             \
    (void)number.to<type>();             \
    break;
    AT_FORALL_SCALAR_TYPES_WITH_COMPLEX(TORCH_XLA_CHECK_FITS)
    TORCH_XLA_CHECK_FITS(uint16_t, UInt16)
    TORCH_XLA_CHECK_FITS(uint32_t, UInt32)
    TORCH_XLA_CHECK_FITS(uint64_t, UInt64)
#undef TORCH_XLA_CHECK_FITS
    default:
      break;
  }
}

// Returns whether an integer is less than the least value of T (-1), greater than the greatest (1), or neither (0).
template <typename T>
int compare_to_range(const at::Scalar& number) {
  if (number.type() == at::kUInt64) {  // larger than every int64_t
    return number.toUInt64() > static_cast<uint64_t>(std::numeric_limits<T>::max()) ? 1 : 0;
  }
  const int64_t value = number.toLong();
  if (std::is_same<T, uint64_t>::value) {
    return value < 0 ? -1 : 0;
  }
  return value < static_cast<int64_t>(std::numeric_limits<T>::min())   ? -1
         : value > static_cast<int64_t>(std::numeric_limits<T>::max()) ? 1
                                                                       : 0;
}

// Raises torch's error if no value of the integer dtype is within a bound of clamp.
void check_bound(const at::Scalar& bound, at::ScalarType dtype, bool is_lower) {
  int place = 0;
  switch (dtype) {
#define TORCH_XLA_COMPARE(type, name)      \
  case at::ScalarType::name:               \
    place = compare_to_range<type>(bound); \
    break;
    AT_FORALL_INT_TYPES(TORCH_XLA_COMPARE)
    TORCH_XLA_COMPARE(uint16_t, UInt16)
    TORCH_XLA_COMPARE(uint32_t, UInt32)
    TORCH_XLA_COMPARE(uint64_t, UInt64)
#undef TORCH_XLA_COMPARE
    default:
      return check_fits(bound, dtype);
  }
  TORCH_CHECK(place != (is_lower ? 1 : -1), "Clamp ", is_lower ? "min" : "max", " value ", bound.toDouble(),
              " is outside the representable range of ", dtype);
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// Returns whether a number of clamp is its lower bound. The arguments of the other clamping ops do not say.
bool is_lower_bound(const Op& op, size_t i) {
  const std::string& argument = op.arg_names[i];
  return argument == "min" || (argument != "max" && (contains(op.name, "clamp_min") || contains(op.name, "maximum")));
}

void check_number(const Op& op, size_t i, const at::Scalar& number, at::ScalarType dtype) {
  const bool is_bound = contains(op.name, "clamp") || contains(op.name, "_foreach_m");  // maximum, minimum
  if (is_bound && !kBoundsMustFit) {
    check_bound(number, dtype, is_lower_bound(op, i));
  } else {
    check_fits(number, dtype);
  }
}

}  // namespace

void check_numbers(const Op& op, const Node& node, c10::ArrayRef<c10::IValue> arguments) {
  const auto& outs = node.output_spec->outs;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool wrapped = op.kinds[i] == ArgKind::kTensor && (node.numbers >> i & 1) != 0;
    if (wrapped || (op.kinds[i] == ArgKind::kScalar && !arguments[i].isNone())) {
      const at::Scalar number = (wrapped ? node.attrs[i] : arguments[i]).toScalar();
      for (const auto& out : outs) {
        check_number(op, i, number, out.dtype);
      }
    } else if (op.kinds[i] == ArgKind::kScalars) {
      const auto numbers = arguments[i].toListRef();
      for (size_t k = 0; k < numbers.size() && k < outs.size(); ++k) {
        check_number(op, i, numbers[k].toScalar(), outs[k].dtype);
      }
    }
  }
}

}  // namespace torch_xla
