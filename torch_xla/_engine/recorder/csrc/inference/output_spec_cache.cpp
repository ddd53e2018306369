#include "inference/output_spec_cache.h"

#include <ATen/Functions.h>

#include <memory>
#include <mutex>
#include <sstream>

#include "compat/python_internal.h"
#include "compat/torch_internal.h"
#include "inference/redispatch.h"
#include "inference/shape_inference.h"
#include "runtime/device.h"
#include "support/counters.h"
#include "support/fork_safe_lock.h"
#include "tensor/xla_tensor.h"

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

const ForkSafeLock signatures_held(cache().mutex);

SignaturePtr find(const Key& key) {
  std::lock_guard<std::mutex> lock(cache().mutex);
  const auto found = cache().signatures.find(key);
  return found == cache().signatures.end() ? SignaturePtr() : found->second;
}

void print(std::ostream& out, const OutputSpec& signature) {
  out << (signature.is_list ? "a list of" : "");
  for (const Shape& shape : signature.outs) {
    out << " " << shape.dtype << at::IntArrayRef(shape.sizes);
  }
}

void check(const Op& op, const OutputSpec& cached, c10::ArrayRef<c10::IValue> arguments) {
  const PythonReentryScope here;
  std::ostringstream was;
  std::ostringstream is;
  print(was, cached);
  print(is, *infer_uncached(op, arguments));
  TORCH_CHECK(was.str() == is.str(), op.name, ": the cached signature is", was.str(), ", and a new one", is.str(),
              "; what decides between them is not in the key");
}

// What is given by its value (dispatch/record.h), as a tensor.
std::vector<c10::IValue> as_tensors(c10::ArrayRef<c10::IValue> arguments) {
  std::vector<c10::IValue> found(arguments.begin(), arguments.end());
  for (c10::IValue& argument : found) {
    if (argument.isCapsule()) {
      argument = make_tensor(c10::static_intrusive_pointer_cast<Node>(argument.toCapsule()));
    }
  }
  return found;
}

SignaturePtr find_or_infer(const Op& op, const Key& key, c10::ArrayRef<c10::IValue> arguments) {
  if (SignaturePtr found = find(key)) {
    if (checking) {
      check(op, *found, as_tensors(arguments));
    }
    return found;
  }
  static Counter* inferred = counter("ShapeInference");
  inferred->add();
  const PythonReentryScope here;
  SignaturePtr signature = infer_uncached(op, as_tensors(arguments));
  std::lock_guard<std::mutex> lock(cache().mutex);
  if (cache().signatures.size() >= kMaxSignatures) {
    cache().signatures.clear();
  }
  cache().signatures.emplace(key, signature);
  return signature;
}

}  // namespace

SignaturePtr infer_output_spec(const Op& op, const Key& key, c10::ArrayRef<c10::IValue> arguments) {
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
    const PythonReentryScope here;
    raise_cpu_out_error(op, arguments, results);
  }
  std::lock_guard<std::mutex> lock(converts->mutex);
  converts->signatures[key] = SignaturePtr();
}

void verify_cache(bool on) {
  checking = on;
  recent = nullptr;
}

}  // namespace torch_xla
