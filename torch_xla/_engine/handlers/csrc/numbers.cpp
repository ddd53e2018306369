// The numbers of a program, one by one (see lowering/on_cpu.py).

#include <cstring>

#include "handler.h"

namespace torch_xla::handlers {
namespace {

namespace ffi = xla::ffi;

// An array of N elements of 64 bits, as N results. No tensors and no team of threads: the work is N copies of a word.
ffi::Error unpack(ffi::RemainingArgs operands, ffi::RemainingRets results, ffi::Dictionary) {
  const auto packed = operands.get<ffi::AnyBuffer>(0);
  if (!packed.has_value() || packed->element_count() != results.size()) {
    return ffi::Error(ffi::ErrorCode::kInternal, "unpack: the results are not as many as the numbers");
  }
  const auto* from = static_cast<const uint64_t*>(packed->untyped_data());
  for (size_t i = 0; i < results.size(); ++i) {
    auto result = results.get<ffi::AnyBuffer>(i);
    if (!result.has_value()) {
      return result.error();
    }
    std::memcpy((*result)->untyped_data(), from + i, sizeof(uint64_t));
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace torch_xla::handlers

TORCH_XLA_HANDLER_OF(unpack, torch_xla::handlers::unpack)
