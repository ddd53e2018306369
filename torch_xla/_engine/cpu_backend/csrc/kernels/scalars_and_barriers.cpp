// Materialization: calls that force the compiler to write values to memory, and unpack numbers
// (lowering/cpu_kernel_call.py).

#include <cstring>

#include "ffi_handler.h"

namespace torch_xla::handlers {
namespace {

namespace ffi = xla::ffi;

// Copies 64-bit elements of an array, from `first` on, to one result each. Runs on XLA's thread, without tensors: it
// copies only a few words.
ffi::Error unpack_scalars(ffi::ThreadPool, ffi::RemainingArgs operands, ffi::RemainingRets results,
                          ffi::Dictionary attributes) {
  const auto packed = operands.get<ffi::AnyBuffer>(0);
  const auto first = attributes.get<int64_t>("first");
  if (!packed.has_value() || !first.has_value() || packed->element_count() < *first + results.size()) {
    return ffi::Error(ffi::ErrorCode::kInternal, "unpack: there are fewer numbers than results");
  }
  const auto* from = static_cast<const uint64_t*>(packed->untyped_data()) + *first;
  for (size_t i = 0; i < results.size(); ++i) {
    auto result = results.get<ffi::AnyBuffer>(i);
    if (!result.has_value()) {
      return result.error();
    }
    std::memcpy((*result)->untyped_data(), from + i, sizeof(uint64_t));
  }
  return ffi::Error::Success();
}

// Returns the first operand unchanged, in its buffer. The other operands are control dependencies only.
ffi::Error materialize(ffi::ThreadPool, ffi::RemainingArgs operands, ffi::RemainingRets results, ffi::Dictionary) {
  const auto from = operands.get<ffi::AnyBuffer>(0);
  auto to = results.get<ffi::AnyBuffer>(0);
  if (!from.has_value() || !to.has_value()) {
    return from.has_value() ? to.error() : from.error();
  }
  if ((*to)->untyped_data() != from->untyped_data()) {
    std::memcpy((*to)->untyped_data(), from->untyped_data(), from->size_bytes());
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace torch_xla::handlers

TORCH_XLA_HANDLER_OF(unpack, torch_xla::handlers::unpack_scalars)
TORCH_XLA_HANDLER_OF(written, torch_xla::handlers::materialize)
