// Matrix multiplications that read transposed operands in place.

#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>

#include "ffi_handler.h"

namespace torch_xla::handlers {
namespace {

void mm(const Tensors& in, Tensors& out, const Attributes&) { at::mm_out(out[0], in[0], in[1]); }

void bmm(const Tensors& in, Tensors& out, const Attributes&) { at::bmm_out(out[0], in[0], in[1]); }

}  // namespace
}  // namespace torch_xla::handlers

TORCH_XLA_HANDLER(mm, torch_xla::handlers::mm)
TORCH_XLA_HANDLER(bmm, torch_xla::handlers::bmm)
