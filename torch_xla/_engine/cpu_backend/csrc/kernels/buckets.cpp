// Buckets: one array that holds many small ones, one after the other (compilation/bucketed_program.py). The compiler would
// make a kernel per array, and compile each, because the offsets differ.

#include <cstring>

#include "ffi_handler.h"

namespace torch_xla::handlers {
namespace {

namespace ffi = xla::ffi;

ffi::Error out_of_range(const char* op) {
  return ffi::Error(ffi::ErrorCode::kInternal, std::string(op) + ": the arrays are larger than the bucket");
}

// Copies consecutive bytes of a bucket, from `first` on, to each result.
ffi::Error split_bucket(ffi::ThreadPool, ffi::RemainingArgs operands, ffi::RemainingRets results,
                        ffi::Dictionary attributes) {
  const auto bucket = operands.get<ffi::AnyBuffer>(0);
  const auto first = attributes.get<int64_t>("first");
  if (!bucket.has_value() || !first.has_value()) {
    return ffi::Error(ffi::ErrorCode::kInternal, "split_bucket: no bucket, or no offset");
  }
  size_t offset = static_cast<size_t>(*first);
  for (size_t i = 0; i < results.size(); ++i) {
    auto result = results.get<ffi::AnyBuffer>(i);
    if (!result.has_value()) {
      return result.error();
    }
    const size_t bytes = (*result)->size_bytes();
    if (offset + bytes > bucket->size_bytes()) {
      return out_of_range("split_bucket");
    }
    std::memcpy((*result)->untyped_data(), static_cast<const char*>(bucket->untyped_data()) + offset, bytes);
    offset += bytes;
  }
  return ffi::Error::Success();
}

// Copies the operands to the result, one after the other.
ffi::Error fill_bucket(ffi::ThreadPool, ffi::RemainingArgs operands, ffi::RemainingRets results, ffi::Dictionary) {
  auto bucket = results.get<ffi::AnyBuffer>(0);
  if (!bucket.has_value()) {
    return bucket.error();
  }
  size_t offset = 0;
  for (size_t i = 0; i < operands.size(); ++i) {
    const auto operand = operands.get<ffi::AnyBuffer>(i);
    if (!operand.has_value()) {
      return operand.error();
    }
    const size_t bytes = operand->size_bytes();
    if (offset + bytes > (*bucket)->size_bytes()) {
      return out_of_range("fill_bucket");
    }
    std::memcpy(static_cast<char*>((*bucket)->untyped_data()) + offset, operand->untyped_data(), bytes);
    offset += bytes;
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace torch_xla::handlers

TORCH_XLA_HANDLER_OF(split_bucket, torch_xla::handlers::split_bucket)
TORCH_XLA_HANDLER_OF(fill_bucket, torch_xla::handlers::fill_bucket)
