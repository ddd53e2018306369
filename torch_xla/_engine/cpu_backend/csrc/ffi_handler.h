// A kernel of ATen as a handler of XLA's FFI: XLA's buffers as tensors, attributes by name, errors with the op's name.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace torch_xla::handlers {

// The attributes of one call. Each throws c10::Error where there is none of that name and type.
class Attributes {
 public:
  explicit Attributes(xla::ffi::Dictionary dictionary) : dictionary_(dictionary) {}
  bool flag(const char* name) const;
  int64_t integer(const char* name) const;
  double real(const char* name) const;
  at::IntArrayRef integers(const char* name) const;
  bool has(const char* name) const { return dictionary_.contains(name); }

 private:
  xla::ffi::Dictionary dictionary_;
};

using Tensors = std::vector<at::Tensor>;

// Computes the results, whose memory is XLA's and holds anything before, from the operands.
using Kernel = void (*)(const Tensors& operands, Tensors& results, const Attributes& attributes);

// What XLA is told of `work`: nothing, or the error that it throws, which begins with what was computed.
xla::ffi::Error catch_errors(const std::string& what, const std::function<void()>& work);

using Handler =
    std::function<xla::ffi::Error(xla::ffi::RemainingArgs, xla::ffi::RemainingRets, xla::ffi::Dictionary attributes)>;

// That of a kernel of ATen.
Handler aten_handler(const char* op, Kernel kernel);

// What XLA calls: the same type for all handlers, so that the FFI's templates are compiled once.
struct Entry {
  Handler handler;
  xla::ffi::Error operator()(xla::ffi::ThreadPool threads, xla::ffi::RemainingArgs operands,
                             xla::ffi::RemainingRets results, xla::ffi::Dictionary attributes) const;
};

// Where the mask has a flag, the next result; nothing elsewhere.
std::vector<at::Tensor*> masked(Tensors& results, at::IntArrayRef mask);
std::array<bool, 3> flags(at::IntArrayRef mask);

}  // namespace torch_xla::handlers

// The handler `torch_xla_NAME`, found in the library by that name: what HANDLER does with operands, results,
// attributes.
#define TORCH_XLA_HANDLER_OF(NAME, HANDLER)                                                                     \
  extern "C" __attribute__((visibility("default"))) XLA_FFI_Error* torch_xla_##NAME(XLA_FFI_CallFrame* frame) { \
    static const auto* handler = xla::ffi::Ffi::Bind()                                                          \
                                     .Ctx<xla::ffi::ThreadPool>()                                               \
                                     .RemainingArgs()                                                           \
                                     .RemainingRets()                                                           \
                                     .Attrs()                                                                   \
                                     .To(torch_xla::handlers::Entry{HANDLER})                                   \
                                     .release();                                                                \
    return handler->Call(frame);                                                                                \
  }

// The same, of a kernel of ATen.
#define TORCH_XLA_HANDLER(NAME, KERNEL) TORCH_XLA_HANDLER_OF(NAME, torch_xla::handlers::aten_handler(#NAME, KERNEL))
