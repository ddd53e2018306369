// AutocastXLA kernels: each converts the arguments by its op's policy, and redispatches below autocast. The op lists
// are torch's for all backends (AT_FORALL_...), so the precision policy matches CUDA's. The kernels are boxed, as the
// recorder's are: unboxed kernels for 130 ops would double the build time.
//
// torch's own cache keeps the casts of float32 leaves that require gradients until the outermost region ends, so a
// weight is cast once per region. Outside of autocast the key AutocastXLA is excluded, and these kernels are not
// called.
#include "aten/autocast.h"

#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>

namespace torch_xla {
namespace {

namespace autocast = at::autocast;
constexpr auto kXla = c10::DeviceType::XLA;

at::ScalarType lower_dtype() { return autocast::get_autocast_dtype(kXla); }

bool eligible(const c10::IValue& value) { return value.isTensor() && autocast::is_eligible(value.toTensor(), kXla); }

c10::IValue converted(const c10::IValue& value, at::ScalarType dtype) {
  if (value.isTensor()) {
    return autocast::cached_cast(dtype, value.toTensor(), kXla);
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorVector()) {
      list.push_back(autocast::cached_cast(dtype, t, kXla));
    }
    return list;
  }
  return value;
}

using Arguments = std::span<c10::IValue>;

void convert_all(Arguments arguments, at::ScalarType dtype) {
  for (c10::IValue& value : arguments) {
    value = converted(value, dtype);
  }
}

// Returns the lower precision if all arguments have it, else float32, which represents either 16-bit dtype.
at::ScalarType widest(Arguments arguments) {
  const at::ScalarType lower = lower_dtype();
  const auto is_wider = [lower](const c10::IValue& value) {
    return eligible(value) && value.toTensor().scalar_type() != lower;
  };
  for (const c10::IValue& value : arguments) {
    if (is_wider(value)) {
      return at::kFloat;
    }
    if (value.isTensorList()) {
      const auto list = value.toListRef();
      if (std::any_of(list.begin(), list.end(), is_wider)) {
        return at::kFloat;
      }
    }
  }
  return lower;
}

enum class Policy : uint8_t {
  kLower,        // in the region's dtype
  kFloat32,      // in float32
  kOptDtype,     // in float32, through the op's `dtype` argument, unless the caller passed one
  kAppendDtype,  // the same, for an op whose overload `target` has that argument
  kWidest,       // in the widest dtype among the arguments
};

// What an op does inside autocast. Immutable, shared by all threads.
struct AutocastKernel final : c10::OperatorKernel {
  AutocastKernel(const c10::OperatorHandle& target_, Policy policy_) : target(target_), policy(policy_) {
    const auto& args = target.schema().arguments();
    const auto found = std::find_if(args.begin(), args.end(), [](const auto& a) { return a.name() == "dtype"; });
    dtype_index = static_cast<size_t>(found - args.begin());
    TORCH_INTERNAL_ASSERT((policy != Policy::kOptDtype && policy != Policy::kAppendDtype) || found != args.end());
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::AutocastXLA);
    const size_t n = op.schema().arguments().size();
    const Arguments arguments(stack->data() + stack->size() - n, n);
    switch (policy) {
      case Policy::kLower:
        convert_all(arguments, lower_dtype());
        break;
      case Policy::kFloat32:
        convert_all(arguments, at::kFloat);
        break;
      case Policy::kOptDtype:
        if (eligible(arguments[0]) && arguments[dtype_index].isNone()) {
          arguments[dtype_index] = static_cast<int64_t>(at::kFloat);
        }
        break;
      case Policy::kAppendDtype:
        stack->emplace_back(
            static_cast<int64_t>(eligible(arguments[0]) ? at::kFloat : arguments[0].toTensor().scalar_type()));
        break;
      case Policy::kWidest:
        convert_all(arguments, widest(arguments));
        break;
    }
    target.callBoxed(stack);
  }

  const c10::OperatorHandle target;
  const Policy policy;
  size_t dtype_index;
};

// Its gradient overflows in float16: rejected, as on CUDA. bfloat16 has the range of float32.
void binary_cross_entropy(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  TORCH_CHECK(lower_dtype() != at::kHalf,
              "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast to float16: the "
              "gradient of a probability overflows. Give the values before the sigmoid to "
              "torch.nn.functional.binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss, which are safe, use "
              "dtype=torch.bfloat16, or compute the loss inside torch.autocast('xla', enabled=False).");
  const c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::AutocastXLA);
  const size_t n = op.schema().arguments().size();
  convert_all(Arguments(stack->data() + stack->size() - n, n), at::kFloat);
  op.callBoxed(stack);
}

#define NAME(...) #__VA_ARGS__,
const char* const kLowerNames[] = {AT_FORALL_LOWER_PRECISION_FP(NAME)};
const char* const kFloat32Names[] = {AT_FORALL_FP32(NAME)};
const char* const kOptDtypeNames[] = {AT_FORALL_FP32_SET_OPT_DTYPE(NAME)};
const char* const kWidestNames[] = {AT_FORALL_PROMOTE(NAME)};
#undef NAME

c10::OperatorHandle find(const std::string& name, const std::string& overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + name).c_str(), overload.c_str());
}

void add(torch::Library& library, const std::string& name, const c10::OperatorHandle& target, Policy policy) {
  library.impl(name.c_str(),
               torch::CppFunction::makeFromBoxedFunctor(std::make_unique<AutocastKernel>(target, policy)));
}

// List entries are "op" or "op, overload".
template <size_t N>
void add_list(torch::Library& library, const char* const (&names)[N], Policy policy) {
  for (const std::string name : names) {
    const size_t comma = name.find(", ");
    const std::string op = name.substr(0, comma);
    const std::string overload = comma == std::string::npos ? std::string() : name.substr(comma + 2);
    add(library, overload.empty() ? op : op + "." + overload, find(op, overload), policy);
  }
}

}  // namespace

void register_autocast() {
  // Owns the registrations; never destroyed.
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutocastXLA, __FILE__, __LINE__);
  add_list(*library, kLowerNames, Policy::kLower);
  add_list(*library, kFloat32Names, Policy::kFloat32);
  add_list(*library, kOptDtypeNames, Policy::kOptDtype);
  add_list(*library, kWidestNames, Policy::kWidest);
  // torch's list has only nll_loss, whose log-probabilities are already rounded.
  add(*library, "cross_entropy_loss", find("cross_entropy_loss", ""), Policy::kFloat32);
  add(*library, "norm.Scalar", find("norm", "ScalarOpt_dtype"), Policy::kAppendDtype);
  add(*library, "norm.ScalarOpt_dim", find("norm", "ScalarOpt_dim_dtype"), Policy::kAppendDtype);
  library->impl("binary_cross_entropy", torch::CppFunction::makeFromBoxedFunction<&binary_cross_entropy>());
}

}  // namespace torch_xla
