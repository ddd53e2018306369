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

// Bounds the cache for programs whose shapes never repeat; refilling it costs at most a millisecond per op.
constexpr size_t kMaxSpecs = 1 << 18;

struct Cache {
  std::mutex mutex;
  compat::FlatMap<Key, OutputSpecPtr, KeyHash> specs;
};

// A per-thread cache in front of it, without a lock.
struct Recent {
  static constexpr size_t kSize = 512;
  struct Entry {
    Key key;
    OutputSpecPtr output_spec;
  };
  Entry entries[kSize];
};

thread_local std::unique_ptr<Recent> recent;  // null: created on first use
thread_local bool verifying = false;

Cache& cache() {
  static auto* c = new Cache;
  return *c;
}

const ForkSafeLock cache_fork_safe(cache().mutex);

OutputSpecPtr find(const Key& key) {
  std::lock_guard<std::mutex> lock(cache().mutex);
  const auto found = cache().specs.find(key);
  return found == cache().specs.end() ? OutputSpecPtr() : found->second;
}

void print(std::ostream& out, const OutputSpec& output_spec) {
  out << (output_spec.is_list ? "a list of" : "");
  for (const Shape& shape : output_spec.outs) {
    out << " " << shape.dtype << at::IntArrayRef(shape.sizes);
  }
}

void verify(const Op& op, const OutputSpec& cached, c10::ArrayRef<c10::IValue> arguments) {
  const PythonReentryScope reentry;
  std::ostringstream old_text;
  std::ostringstream inferred_text;
  print(old_text, cached);
  print(inferred_text, *infer_uncached(op, arguments));
  TORCH_CHECK(old_text.str() == inferred_text.str(), op.name, ": the cached output spec is", old_text.str(),
              ", but inference returns", inferred_text.str(),
              "; something that determines the output spec is missing from the key");
}

// Replaces arguments that are Nodes (dispatch/record.h) by tensors.
std::vector<c10::IValue> as_tensors(c10::ArrayRef<c10::IValue> arguments) {
  std::vector<c10::IValue> found(arguments.begin(), arguments.end());
  for (c10::IValue& argument : found) {
    if (argument.isCapsule()) {
      argument = make_tensor(c10::static_intrusive_pointer_cast<Node>(argument.toCapsule()));
    }
  }
  return found;
}

OutputSpecPtr find_or_infer(const Op& op, const Key& key, c10::ArrayRef<c10::IValue> arguments) {
  if (OutputSpecPtr found = find(key)) {
    if (verifying) {
      verify(op, *found, as_tensors(arguments));
    }
    return found;
  }
  static const CounterPointer inferred("ShapeInference");
  inferred->add();
  const PythonReentryScope reentry;
  OutputSpecPtr output_spec = infer_uncached(op, as_tensors(arguments));
  std::lock_guard<std::mutex> lock(cache().mutex);
  if (cache().specs.size() >= kMaxSpecs) {
    cache().specs.clear();
  }
  cache().specs.emplace(key, output_spec);
  return output_spec;
}

}  // namespace

OutputSpecPtr infer_output_spec(const Op& op, const Key& key, c10::ArrayRef<c10::IValue> arguments) {
  if (C10_UNLIKELY(!recent)) {
    if (verifying) {  // bypass this table, which would hide lookups
      return find_or_infer(op, key, arguments);
    }
    recent = std::make_unique<Recent>();
  }
  Recent::Entry& entry = recent->entries[key.a % Recent::kSize];
  if (entry.key == key && entry.output_spec) {
    return entry.output_spec;
  }
  OutputSpecPtr output_spec = find_or_infer(op, key, arguments);
  entry.key = key;
  entry.output_spec = output_spec;
  return output_spec;
}

void check_out_dtypes(const Op& op, c10::ArrayRef<c10::IValue> arguments, c10::ArrayRef<c10::IValue> results) {
  static auto* accepted = new Cache;  // the dtype pairs that the CPU accepts
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
    std::lock_guard<std::mutex> lock(accepted->mutex);
    if (accepted->specs.count(key) != 0) {
      return;
    }
  }
  {
    const PythonReentryScope reentry;
    raise_cpu_out_error(op, arguments, results);
  }
  std::lock_guard<std::mutex> lock(accepted->mutex);
  accepted->specs[key] = OutputSpecPtr();
}

void verify_cache(bool on) {
  verifying = on;
  recent = nullptr;
}

}  // namespace torch_xla
