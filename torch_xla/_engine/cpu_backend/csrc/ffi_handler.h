// Wraps ATen kernels as XLA FFI handlers: XLA's buffers as tensors, attributes by name, errors prefixed with the op.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace torch_xla::handlers {

// The attributes of one call. Accessors throw c10::Error if there is no attribute of that name and type.
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

// Computes the results from the operands. The results' memory belongs to XLA and is uninitialized.
using Kernel = void (*)(const Tensors& operands, Tensors& results, const Attributes& attributes);

// Runs `work` and returns success, or the error that it throws, prefixed with `what`.
xla::ffi::Error catch_errors(const std::string& what, const std::function<void()>& work);

using Handler = std::function<xla::ffi::Error(xla::ffi::ThreadPool pool, xla::ffi::RemainingArgs,
                                              xla::ffi::RemainingRets, xla::ffi::Dictionary attributes)>;

// Returns the handler of an ATen kernel.
Handler aten_handler(const char* op, Kernel kernel);

// Returns the next result for each nonzero flag of the mask, null for the others.
std::vector<at::Tensor*> masked(Tensors& results, at::IntArrayRef mask);
std::array<bool, 3> flags(at::IntArrayRef mask);

}  // namespace torch_xla::handlers

// Defines the FFI handler `torch_xla_NAME`, exported under that name: calls HANDLER with operands, results, attributes.
#define TORCH_XLA_HANDLER_OF(NAME, HANDLER)                                                                     \
  extern "C" __attribute__((visibility("default"))) XLA_FFI_Error* torch_xla_##NAME(XLA_FFI_CallFrame* frame) { \
    static const auto* handler = xla::ffi::Ffi::Bind()                                                          \
                                     .Ctx<xla::ffi::ThreadPool>()                                               \
                                     .RemainingArgs()                                                           \
                                     .RemainingRets()                                                           \
                                     .Attrs()                                                                   \
                                     .To(torch_xla::handlers::Handler(HANDLER))                                 \
                                     .release();                                                                \
    return handler->Call(frame);                                                                                \
  }

// The same for an ATen kernel.
#define TORCH_XLA_HANDLER(NAME, KERNEL) TORCH_XLA_HANDLER_OF(NAME, torch_xla::handlers::aten_handler(#NAME, KERNEL))
