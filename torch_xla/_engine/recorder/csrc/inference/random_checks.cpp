#include "inference/random_checks.h"

#include <ATen/Functions.h>

#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "compat/torch_internal.h"
#include "inference/redispatch.h"

namespace torch_xla {
namespace {

// Checks a range [from, to) of integers as `dtype`: torch's kernel rejects empty ranges and bounds that overflow.
void check_range(at::ScalarType dtype, int64_t from, std::optional<int64_t> to) {
  at::empty({1}, at::TensorOptions().dtype(dtype).device(at::kCPU)).random_(from, to, compat::createCPUGenerator());
}

// The bounds of randint variants come first, or after a tensor that determines the dtype unless one is passed.
void check_randint(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  at::ScalarType dtype = at::kLong;
  std::vector<int64_t> bounds;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (i == 0 && arguments[i].isTensor()) {
      dtype = arguments[i].toTensor().scalar_type();
    } else if (op.kinds[i] == ArgKind::kDtype && !arguments[i].isNone()) {
      dtype = arguments[i].toScalarType();
    } else if (op.arg_names[i] == "low" || op.arg_names[i] == "high") {
      if (!arguments[i].isInt()) {
        return;
      }
      bounds.push_back(arguments[i].toInt());
    }
  }
  check_range(dtype, bounds.size() == 2 ? bounds[0] : 0, bounds.back());
}

// Runs the CPU kernel for one element, with a temporary generator: torch's must not advance.
void draw_one_on_cpu(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  const auto one_element = [](const at::Tensor& t) {
    return at::zeros({1}, at::TensorOptions().dtype(t.scalar_type()).device(at::kCPU));
  };
  std::vector<c10::IValue> with_generator(arguments.begin(), arguments.end());
  with_generator.back() = compat::createCPUGenerator();
  redispatch(op, with_generator, DeviceSubstitution{at::kCPU, one_element});
}

}  // namespace

void check_random(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  static const std::unordered_set<std::string> checked_by_kernel{
      "aten::cauchy",      "aten::exponential", "aten::geometric",        "aten::log_normal",
      "aten::random.from", "aten::random.to",   "aten::normal_functional"};
  const std::string& name = op.functional ? op.functional->name : op.name;
  if (checked_by_kernel.count(name) != 0) {
    draw_one_on_cpu(op.functional ? *op.functional : op, arguments);
    return;
  }
  const bool floats_only =
      name == "aten::uniform" || name.rfind("aten::rrelu_with_noise", 0) == 0 || name == "aten::bernoulli";
  if (floats_only || name.rfind("aten::bernoulli", 0) == 0) {
    const at::ScalarType dtype = arguments[0].toTensor().scalar_type();
    // The real and imaginary parts of a complex number are drawn separately.
    const bool supported =
        at::isComplexType(dtype) ? name == "aten::uniform" : !floats_only || at::isFloatingType(dtype);
    TORCH_CHECK_NOT_IMPLEMENTED(supported, "\"", name, "\" not implemented for '", at::toString(dtype), "'");
  }
  if (name.rfind("aten::randint", 0) == 0) {
    check_randint(op, arguments);
    return;
  }
  if (name == "aten::uniform") {
    const double from = arguments[1].toDouble();
    const double to = arguments[2].toDouble();
    TORCH_CHECK(from <= to, "uniform_ expects to return a [from, to) range, but found from=", from, " > to=", to);
  } else if (name == "aten::multinomial") {
    const at::Tensor weights = arguments[0].toTensor();
    TORCH_CHECK(at::isFloatingType(weights.scalar_type()),
                "multinomial only supports floating-point dtypes for input, got: ", weights.scalar_type());
    const int64_t samples = arguments[1].toInt();
    TORCH_CHECK(samples > 0, "cannot sample n_sample <= 0 samples");
    TORCH_CHECK(weights.dim() == 0 || arguments[2].toBool() || samples <= weights.size(-1),
                "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
    // Categories are found by a float32 draw.
    TORCH_CHECK(weights.dim() == 0 || weights.size(-1) <= 1 << 24, "number of categories cannot exceed 2^24");
  } else if (name.rfind("aten::bernoulli", 0) == 0 && arguments.size() > 1 && arguments[1].isDouble()) {
    const double p = arguments[1].toDouble();
    TORCH_CHECK(0 <= p && p <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", p);
  }
}

void check_random_out(const Op& functional, at::ScalarType out) {
  const std::string& name = functional.name;
  TORCH_CHECK(name != "aten::multinomial" || out == at::kLong,
              "multinomial expects Long tensor out, got: ", at::toString(out));
  // torch draws the parts of a complex number separately, which is not a conversion of the values drawn here.
  const bool rejected = name.rfind("aten::normal", 0) == 0 ? !at::isFloatingType(out)
                                                           : name == "aten::bernoulli" && at::isComplexType(out);
  TORCH_CHECK_NOT_IMPLEMENTED(!rejected, "\"", name, "\" not implemented for '", at::toString(out), "'");
}

}  // namespace torch_xla
