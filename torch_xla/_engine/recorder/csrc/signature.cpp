#include "signature.h"

#include <ATen/Functions.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <sstream>
#include <unordered_set>

#include "compat.h"
#include "fork.h"
#include "record.h"

namespace torch_xla {
namespace {

// Programs whose shapes never repeat must not grow it without bound; refilling costs a millisecond per op at most.
constexpr size_t kMaxSignatures = 1 << 18;

struct Cache {
  std::mutex mutex;
  compat::FlatMap<Key, SignaturePtr, KeyHash> signatures;
};

// In front of it, without a lock: what this thread asked for last.
struct Recent {
  static constexpr size_t kSize = 512;
  struct Entry {
    Key key;
    SignaturePtr signature;
  };
  Entry entries[kSize];
};

thread_local std::unique_ptr<Recent> recent;  // null: made when it is needed
thread_local bool checking = false;

Cache& cache() {
  static auto* c = new Cache;
  return *c;
}

const HeldAtFork signatures_held(cache().mutex);

// Another device, and the tensors that stand for ours there.
struct Substitute {
  c10::Device device;
  std::function<at::Tensor(const at::Tensor&)> make;

  at::Tensor operator()(const at::Tensor& t) const {
    return t.defined() && t.device().type() == c10::DeviceType::XLA ? make(t) : t;
  }
};

c10::IValue substituted(const c10::IValue& value, const Substitute& substitute) {
  if (value.isTensor()) {
    return substitute(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorVector()) {
      list.push_back(substitute(t));
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& t : value.toListRef()) {
      list.push_back(t.isNone() ? std::optional<at::Tensor>() : std::optional<at::Tensor>(substitute(t.toTensor())));
    }
    return list;
  }
  return value.isDevice() ? c10::IValue(substitute.device) : value;
}

void add_result(const Op& op, Signature& signature, const at::Tensor& t) {
  if (t.defined()) {
    TORCH_CHECK(t.scalar_type() != at::kComplexHalf, op.name, ": XLA has no complex numbers of two 16-bit floats (",
                t.sizes(), " of torch.complex32); use torch.complex64");
    signature.outs.emplace_back(t.scalar_type(), t.sizes());
  } else {
    signature.outs.emplace_back();
  }
}

// The results of the op on tensors of another device in place of ours.
torch::jit::Stack call_elsewhere(const Op& op, c10::ArrayRef<c10::IValue> arguments, const Substitute& substitute) {
  // Below everything that is not the kernel itself: these tensors have no autograd of their own.
  c10::impl::ExcludeDispatchKeyGuard below(
      c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset |
      c10::DispatchKeySet({c10::DispatchKey::Functionalize, c10::DispatchKey::ADInplaceOrView}));
  torch::jit::Stack stack;
  for (const auto& argument : arguments) {
    stack.push_back(substituted(argument, substitute));
  }
  op.handle.callBoxed(&stack);
  return stack;
}

// torch's meta functions are partly in Python and say some things in other words than the kernels. So the words of a
// refusal are the CPU's, where the CPU refuses too; asking it costs something, but only once something went wrong.
void raise_as_cpu_does(const Op& op, c10::ArrayRef<c10::IValue> arguments, int64_t most_elements = 1 << 20) {
  int64_t elements = 0;
  const auto on_cpu = [&](const at::Tensor& t) {
    elements += t.numel();
    TORCH_CHECK(elements <= most_elements, "too large to try");
    return at::zeros(t.sizes(), at::TensorOptions().dtype(t.scalar_type()).device(at::kCPU));
  };
  try {
    for (const auto& argument : arguments) {
      substituted(argument, Substitute{at::kCPU, on_cpu});
    }
  } catch (const c10::Error&) {
    return;
  }
  elements = 0;
  call_elsewhere(op, arguments, Substitute{at::kCPU, on_cpu});
}

// Raises what the CPU raises for writing to outs of these dtypes, and not for outs of those of the results.
void raise_for_out(const Op& op, c10::ArrayRef<c10::IValue> arguments, c10::ArrayRef<c10::IValue> results) {
  constexpr int64_t kMost = 1 << 12;
  std::vector<c10::IValue> matching(arguments.begin(), arguments.end());
  const size_t first = arguments.size() - results.size();
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].toTensor().numel() > kMost) {
      return;
    }
    matching[first + i] = results[i];
  }
  const auto on_cpu = [](const at::Tensor& t) {
    TORCH_CHECK(t.numel() <= kMost, "too large to try");
    return at::zeros(t.sizes(), at::TensorOptions().dtype(t.scalar_type()).device(at::kCPU));
  };
  try {
    call_elsewhere(op, matching, Substitute{at::kCPU, on_cpu});
  } catch (const std::exception&) {
    return;
  }
  call_elsewhere(op, arguments, Substitute{at::kCPU, on_cpu});
}

// torch's meta function takes 16-bit brains alone, and asks for strides that are multiples of 16 bytes.
at::Tensor grouped_product_on_meta(c10::ArrayRef<c10::IValue> arguments) {
  const at::Tensor a = arguments[0].toTensor();
  const at::Tensor b = arguments[1].toTensor();
  const bool rows = a.dim() == 2;
  const bool columns = b.dim() == 2;
  const auto shapes = [&] { return c10::str(a.scalar_type(), a.sizes(), " and ", b.scalar_type(), b.sizes()); };
  const auto is_2_or_3 = [](const at::Tensor& t) { return t.dim() == 2 || t.dim() == 3; };
  TORCH_CHECK(is_2_or_3(a) && is_2_or_3(b), "aten::_grouped_mm: mat_a and mat_b have to be 2 or 3 dimensional, got ",
              shapes());
  TORCH_CHECK(a.scalar_type() == b.scalar_type() &&
                  (a.scalar_type() == at::kFloat || a.scalar_type() == at::kHalf || a.scalar_type() == at::kBFloat16),
              "Expected mat_a to be Float32, BFloat16 or Float16 matrix, and mat_b to be one of the same dtype, got ",
              shapes());
  TORCH_CHECK(a.size(-1) == b.size(-2), "contraction dimension of mat_a and mat_b must match, got ", shapes());
  TORCH_CHECK(arguments[2].isNone() != (rows || columns),
              "aten::_grouped_mm: have to provide offsets if there is a 2d matrix, and only then");
  TORCH_CHECK(arguments[3].isNone(), "aten::_grouped_mm: bias is not supported yet");
  at::DimVector sizes;
  const int64_t groups = arguments[2].isNone() ? a.size(0) : arguments[2].toTensor().numel();
  TORCH_CHECK((rows || a.size(0) == groups) && (columns || b.size(0) == groups),
              "matrix batch sizes have to match: ", shapes(), " for ", groups, " groups");
  if (rows == columns) {
    sizes.push_back(groups);
  }
  sizes.push_back(a.size(-2));
  sizes.push_back(b.size(-1));
  const at::ScalarType dtype = arguments[4].isNone() ? a.scalar_type() : arguments[4].toScalarType();
  return at::empty(sizes, at::TensorOptions().dtype(dtype).device(at::kMeta));
}

torch::jit::Stack results_on_meta(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  if (op.name == "aten::_grouped_mm") {
    return {grouped_product_on_meta(arguments)};
  }
  // The kernels take targets of one byte, the meta functions refuse them.
  const bool byte_targets = op.name.rfind("aten::nll_loss", 0) == 0;
  const auto on_meta = [&](const at::Tensor& t) {
    const at::ScalarType dtype = byte_targets && t.scalar_type() == at::kByte ? at::kLong : t.scalar_type();
    return at::empty(t.sizes(), at::TensorOptions().dtype(dtype).device(at::kMeta));
  };
  try {
    return call_elsewhere(op, arguments, Substitute{at::kMeta, on_meta});
  } catch (const std::exception&) {
    raise_as_cpu_does(op, arguments);
    throw;
  }
}

// Ops whose meta functions let pass what the kernels refuse, such as dims of a tensor that has none, or bits of floats.
// They would fail when the graph is compiled, at another line than the user's. Small ones are tried on the CPU.
bool meta_says_too_little(const Op& op) {
  static const std::unordered_set<std::string> names{"aten::_log_softmax",
                                                     "aten::_logcumsumexp",
                                                     "aten::_native_batch_norm_legit.no_stats",
                                                     "aten::_native_batch_norm_legit_functional",
                                                     "aten::_native_batch_norm_legit_no_training",
                                                     "aten::_softmax",
                                                     "aten::amax",
                                                     "aten::amin",
                                                     "aten::aminmax",
                                                     "aten::argmax",
                                                     "aten::argmin",
                                                     "aten::binary_cross_entropy",
                                                     "aten::bitwise_and.Tensor",
                                                     "aten::bitwise_not",
                                                     "aten::bitwise_or.Tensor",
                                                     "aten::bitwise_xor.Tensor",
                                                     "aten::bucketize.Tensor",
                                                     "aten::celu",
                                                     "aten::convolution",
                                                     "aten::cummax",
                                                     "aten::cummin",
                                                     "aten::diagonal_scatter",
                                                     "aten::elu",
                                                     "aten::ge.Scalar",
                                                     "aten::ge.Tensor",
                                                     "aten::gelu",
                                                     "aten::gelu_backward",
                                                     "aten::glu",
                                                     "aten::gt.Scalar",
                                                     "aten::gt.Tensor",
                                                     "aten::hardshrink",
                                                     "aten::hardsigmoid",
                                                     "aten::hardswish",
                                                     "aten::hardtanh",
                                                     "aten::heaviside",
                                                     "aten::index_select",
                                                     "aten::kthvalue",
                                                     "aten::le.Scalar",
                                                     "aten::le.Tensor",
                                                     "aten::leaky_relu",
                                                     "aten::linalg_cross",
                                                     "aten::linalg_lu_factor_ex",
                                                     "aten::log_sigmoid_forward",
                                                     "aten::lt.Scalar",
                                                     "aten::lt.Tensor",
                                                     "aten::max",
                                                     "aten::max.dim",
                                                     "aten::maximum",
                                                     "aten::median.dim",
                                                     "aten::min",
                                                     "aten::min.dim",
                                                     "aten::minimum",
                                                     "aten::mish",
                                                     "aten::mode",
                                                     "aten::mvlgamma",
                                                     "aten::nanmedian.dim",
                                                     "aten::nansum",
                                                     "aten::native_group_norm",
                                                     "aten::native_layer_norm",
                                                     "aten::pow.Tensor_Scalar",
                                                     "aten::put",
                                                     "aten::relu",
                                                     "aten::rsub.Scalar",
                                                     "aten::rsub.Tensor",
                                                     "aten::searchsorted.Scalar",
                                                     "aten::searchsorted.Tensor",
                                                     "aten::sign",
                                                     "aten::silu",
                                                     "aten::silu_backward",
                                                     "aten::slice_scatter",
                                                     "aten::softplus",
                                                     "aten::softshrink",
                                                     "aten::sort",
                                                     "aten::sort.stable",
                                                     "aten::std.correction",
                                                     "aten::sub.Tensor",
                                                     "aten::threshold",
                                                     "aten::topk",
                                                     "aten::var.correction"};
  return names.count(op.functional ? op.functional->name : op.name) != 0;
}

void try_on_cpu(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  try {
    raise_as_cpu_does(op, arguments, 1 << 12);
  } catch (const c10::NotImplementedError&) {
    // A float that the CPU has no kernel for, and XLA has; but nobody has bits of floats, the order of complex numbers,
    // or activations of integers.
    const bool floats = arguments[0].isTensor() && at::isFloatingType(arguments[0].toTensor().scalar_type());
    if (!floats || op.name.rfind("aten::bitwise", 0) == 0) {
      throw;
    }
  }
}

// What the kernels refuse and the meta functions let pass: products of different dtypes.
void check_dtypes_agree(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  static const std::unordered_set<std::string> products{
      "aten::addbmm", "aten::addmm", "aten::addmv", "aten::addr",        "aten::baddbmm", "aten::bmm",
      "aten::dot",    "aten::mm",    "aten::mv",    "aten::convolution", "aten::vdot"};
  if (products.count(op.functional ? op.functional->name : op.name) == 0) {
    return;
  }
  at::ScalarType first = at::ScalarType::Undefined;
  for (const auto& value : arguments) {
    if (!value.isTensor() || !value.toTensor().defined()) {
      continue;
    }
    const at::ScalarType dtype = value.toTensor().scalar_type();
    if (first != at::ScalarType::Undefined && dtype != first) {
      raise_as_cpu_does(op, arguments);
      TORCH_CHECK(false, op.name, ": expected operands of one dtype, but got ", at::toString(first), " and ",
                  at::toString(dtype));
    }
    first = dtype;
  }
}

bool any_below(const c10::IValue& numbers, int64_t least) {
  const auto list = numbers.toIntVector();
  return std::any_of(list.begin(), list.end(), [&](int64_t n) { return n < least; });
}

// Whole numbers of [from, to) as `dtype`, which torch's kernel refuses where there are none, or some do not fit.
void check_range(at::ScalarType dtype, int64_t from, std::optional<int64_t> to) {
  at::empty({1}, at::TensorOptions().dtype(dtype).device(at::kCPU)).random_(from, to, compat::createCPUGenerator());
}

// The bounds of randint and its like come first, or after a tensor whose dtype is the result's unless one is given.
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

// Calls the kernel of the CPU for one element, with a generator of its own: torch's does not move on.
void draw_one_on_cpu(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  const auto one = [](const at::Tensor& t) {
    return at::zeros({1}, at::TensorOptions().dtype(t.scalar_type()).device(at::kCPU));
  };
  std::vector<c10::IValue> with_generator(arguments.begin(), arguments.end());
  with_generator.back() = compat::createCPUGenerator();
  call_elsewhere(op, with_generator, Substitute{at::kCPU, one});
}

// What random kernels refuse; the CPU's own generator must not move on.
void check_random(const Op& op, const std::string& name, c10::ArrayRef<c10::IValue> arguments) {
  static const std::unordered_set<std::string> of_numbers{
      "aten::cauchy",      "aten::exponential", "aten::geometric",        "aten::log_normal",
      "aten::random.from", "aten::random.to",   "aten::normal_functional"};
  if (of_numbers.count(name) != 0) {
    draw_one_on_cpu(op.functional ? *op.functional : op, arguments);
    return;
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
  } else if (name.rfind("aten::bernoulli", 0) == 0 && arguments.size() > 1 && arguments[1].isDouble()) {
    const double p = arguments[1].toDouble();
    TORCH_CHECK(0 <= p && p <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", p);
  }
}

bool is_empty(const c10::IValue& value) { return value.isTensor() && value.toTensor().numel() == 0; }

// Whether values of another dtype, or of none of the places that there are, are put or looked up: the CPU refuses some.
bool indexes_wrongly(const std::string& name, c10::ArrayRef<c10::IValue> arguments) {
  if (name == "aten::index_put" || name == "aten::_index_put_impl" || name == "aten::index_copy") {
    const size_t source = name == "aten::index_copy" ? 3 : 2;
    const auto indices = name == "aten::index_copy" ? c10::ArrayRef<c10::IValue>() : arguments[1].toListRef();
    return arguments[0].toTensor().scalar_type() != arguments[source].toTensor().scalar_type() ||
           std::any_of(indices.begin(), indices.end(), is_empty);
  }
  return (name == "aten::index.Tensor" || name == "aten::gather" || name == "aten::take") && is_empty(arguments[0]);
}

// Where the meta functions let pass what the kernels refuse, for reasons that shapes, dtypes and numbers tell.
void check_as_cpu_does(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  static const std::unordered_set<std::string> lenient{"aten::as_strided_copy",  "aten::as_strided_scatter",
                                                       "aten::bucketize.Tensor", "aten::complex",
                                                       "aten::index_add",        "aten::masked_scatter"};
  const std::string& name = op.functional ? op.functional->name : op.name;
  if (op.random) {
    check_random(op, name, arguments);
  } else if (name == "aten::nll_loss_forward") {
    const at::ScalarType target = arguments[1].toTensor().scalar_type();
    TORCH_CHECK(target == at::kLong || target == at::kByte, "expected target dtype to be Long or Byte, but got ",
                at::toString(target));
  } else if (name == "aten::nll_loss2d_forward") {
    const at::ScalarType target = arguments[1].toTensor().scalar_type();
    TORCH_CHECK(target == at::kLong, "expected scalar type Long but found ", at::toString(target));
  } else if (lenient.count(name) != 0 || indexes_wrongly(name, arguments) ||
             (name == "aten::convolution" &&
              (any_below(arguments[3], 1) || any_below(arguments[4], 0) || any_below(arguments[5], 1)))) {
    raise_as_cpu_does(op, arguments);
  }
}

// What an op would return must fit into the tensor that it writes to.
void check_fits(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  const torch::jit::Stack stack = results_on_meta(*op.functional, arguments);
  if (stack.size() == 1 && stack[0].isTensor()) {
    const at::ScalarType result = stack[0].toTensor().scalar_type();
    const at::ScalarType self = arguments[0].toTensor().scalar_type();
    TORCH_CHECK(c10::canCast(result, self), "result type ", at::toString(result),
                " can't be cast to the desired output type ", at::toString(self));
  }
}

SignaturePtr infer(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  const torch::jit::Stack stack = results_on_meta(op, arguments);
  if (meta_says_too_little(op)) {
    try_on_cpu(op, arguments);
  }
  check_dtypes_agree(op, arguments);
  check_as_cpu_does(op, arguments);
  if (op.functional != nullptr && !op.random) {
    check_fits(op, arguments);
  }
  auto signature = c10::make_intrusive<Signature>();
  for (const auto& result : stack) {
    if (result.isTensorList()) {
      signature->is_list = true;
      for (const at::Tensor& t : result.toTensorVector()) {
        add_result(op, *signature, t);
      }
    } else {
      add_result(op, *signature, result.isNone() ? at::Tensor() : result.toTensor());
    }
  }
  return signature;
}

SignaturePtr find(const Key& key) {
  std::lock_guard<std::mutex> lock(cache().mutex);
  const auto found = cache().signatures.find(key);
  return found == cache().signatures.end() ? SignaturePtr() : found->second;
}

void print(std::ostream& out, const Signature& signature) {
  out << (signature.is_list ? "a list of" : "");
  for (const Shape& shape : signature.outs) {
    out << " " << shape.dtype << at::IntArrayRef(shape.sizes);
  }
}

void check(const Op& op, const Signature& cached, c10::ArrayRef<c10::IValue> arguments) {
  const MayRunPython here;
  std::ostringstream was;
  std::ostringstream is;
  print(was, cached);
  print(is, *infer(op, arguments));
  TORCH_CHECK(was.str() == is.str(), op.name, ": the cached signature is", was.str(), ", and a new one", is.str(),
              "; what decides between them is not in the key");
}

SignaturePtr find_or_infer(const Op& op, const Key& key, c10::ArrayRef<c10::IValue> arguments) {
  if (SignaturePtr found = find(key)) {
    if (checking) {
      check(op, *found, arguments);
    }
    return found;
  }
  static Counter* inferred = counter("ShapeInference");
  inferred->add();
  const MayRunPython here;
  SignaturePtr signature = infer(op, arguments);
  std::lock_guard<std::mutex> lock(cache().mutex);
  if (cache().signatures.size() >= kMaxSignatures) {
    cache().signatures.clear();
  }
  cache().signatures.emplace(key, signature);
  return signature;
}

}  // namespace

SignaturePtr infer_signature(const Op& op, const Key& key, c10::ArrayRef<c10::IValue> arguments) {
  if (C10_UNLIKELY(!recent)) {
    if (checking) {  // past the table that would hide what is asked for
      return find_or_infer(op, key, arguments);
    }
    recent = std::make_unique<Recent>();
  }
  Recent::Entry& entry = recent->entries[key.a % Recent::kSize];
  if (entry.key == key && entry.signature) {
    return entry.signature;
  }
  SignaturePtr signature = find_or_infer(op, key, arguments);
  entry.key = key;
  entry.signature = signature;
  return signature;
}

void check_out_dtypes(const Op& op, c10::ArrayRef<c10::IValue> arguments, c10::ArrayRef<c10::IValue> results) {
  static auto* converts = new Cache;  // what was found to be converted
  Key key = op.key;
  bool same = true;
  const size_t first = arguments.size() - results.size();
  for (size_t i = 0; i < results.size(); ++i) {
    const at::ScalarType from = results[i].toTensor().scalar_type();
    const at::ScalarType to = arguments[first + i].toTensor().scalar_type();
    same = same && from == to;
    key.mix(static_cast<uint64_t>(from) << 8 | static_cast<uint64_t>(to));
  }
  if (same || op.random) {
    return;
  }
  {
    std::lock_guard<std::mutex> lock(converts->mutex);
    if (converts->signatures.count(key) != 0) {
      return;
    }
  }
  {
    const MayRunPython here;
    raise_for_out(op, arguments, results);
  }
  std::lock_guard<std::mutex> lock(converts->mutex);
  converts->signatures[key] = SignaturePtr();
}

void check_signatures(bool on) {
  checking = on;
  recent = nullptr;
}

}  // namespace torch_xla
