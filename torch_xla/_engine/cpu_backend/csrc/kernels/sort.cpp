// Stable sort.

#include <ATen/ops/sort.h>

#include "ffi_handler.h"

namespace torch_xla::handlers {
namespace {

void sort(const Tensors& in, Tensors& out, const Attributes& a) {
  at::sort_out(out[0], out[1], in[0], std::optional(true), a.integer("dim"), a.flag("descending"));
}

}  // namespace
}  // namespace torch_xla::handlers

TORCH_XLA_HANDLER(sort, torch_xla::handlers::sort)
