// Column sums of a float32 matrix, as in the gradient of a bias.

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

// Operand: an array; the result lacks its first dimension.
ffi::Error sum(ffi::ThreadPool pool, ffi::RemainingArgs operands, ffi::RemainingRets results, ffi::Dictionary) {
  return catch_errors("aten::sum", [&] {
    const auto x = *operands.get<ffi::AnyBuffer>(0);
    const int64_t rows = x.dimensions()[0], all = static_cast<int64_t>(x.element_count()), n = all / rows;
    const int64_t partitions = (rows + kRowsPerTile - 1) / kRowsPerTile,
                  tiles = (n + kColumnsPerTile - 1) / kColumnsPerTile;
    std::vector<float> sums(partitions * n);
    parallel_if_large(pool, partitions * tiles, all, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i / tiles * kRowsPerTile, column = i % tiles * kColumnsPerTile;
        add_rows(std::min(kRowsPerTile, rows - first), std::min(kColumnsPerTile, n - column), n,
                 memory(x) + first * n + column, &sums[i / tiles * n + column]);
      }
    });
    add_partial_sums(partitions, n, sums.data(), memory(**results.get<ffi::AnyBuffer>(0)));
  });
}

}  // namespace
}  // namespace torch_xla::handlers

TORCH_XLA_HANDLER_OF(sum, torch_xla::handlers::sum)
