// The sum of a float32 array's rows, as the gradient of a bias is.

#include <vector>

#include "kernels/row_reduction.h"

namespace torch_xla::handlers {
namespace {

namespace ffi = xla::ffi;

TORCH_XLA_MULTIVERSION void add_rows(int64_t rows, int64_t columns, int64_t stride, const float* x, float* to) {
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4) {
    const float *a = x + row * stride, *b = a + stride, *c = b + stride, *d = c + stride;
    _Pragma("GCC ivdep") for (int64_t i = 0; i < columns; ++i) { to[i] += (a[i] + b[i]) + (c[i] + d[i]); }
  }
  for (; row < rows; ++row) {
    const float* a = x + row * stride;
    _Pragma("GCC ivdep") for (int64_t i = 0; i < columns; ++i) { to[i] += a[i]; }
  }
}

// Operand: an array of rows; its first dimension is left out of the result.
ffi::Error sum(ffi::RemainingArgs operands, ffi::RemainingRets results, ffi::Dictionary) {
  return catch_errors("aten::sum", [&] {
    const auto x = *operands.get<ffi::AnyBuffer>(0);
    const int64_t rows = x.dimensions()[0], all = static_cast<int64_t>(x.element_count()), n = all / rows;
    const int64_t parts = (rows + kRowsOfPart - 1) / kRowsOfPart, tiles = (n + kColumnsOfPart - 1) / kColumnsOfPart;
    std::vector<float> sums(parts * n);
    parallel_if_large(parts * tiles, all, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i / tiles * kRowsOfPart, column = i % tiles * kColumnsOfPart;
        add_rows(std::min(kRowsOfPart, rows - first), std::min(kColumnsOfPart, n - column), n,
                 memory(x) + first * n + column, &sums[i / tiles * n + column]);
      }
    });
    add_parts(parts, n, sums.data(), memory(**results.get<ffi::AnyBuffer>(0)));
  });
}

}  // namespace
}  // namespace torch_xla::handlers

TORCH_XLA_HANDLER_OF(sum, torch_xla::handlers::sum)
