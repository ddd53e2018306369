// Layer normalization of float32 rows, and its gradients, one pass per row while it is in the cache.

#include <cmath>
#include <vector>

#include "kernels/row_reduction.h"

namespace torch_xla::handlers {
namespace {

namespace ffi = xla::ffi;

TORCH_XLA_MULTIVERSION void normalize(int64_t n, const float* x, const float* weight, const float* bias, float eps,
                                      float* out, float* mean, float* rstd) {
  const float row_mean = sum_of(n, [&](int64_t i) __attribute__((always_inline)) { return x[i]; }) / n;
  const float square = sum_of(n, [&](int64_t i) __attribute__((always_inline)) {
    const float deviation = x[i] - row_mean;
    return deviation * deviation;
  });
  const float scale = 1 / std::sqrt(square / n + eps);
  _Pragma("GCC ivdep") for (int64_t i = 0; i < n; ++i) { out[i] = (x[i] - row_mean) * scale * weight[i] + bias[i]; }
  *mean = row_mean;
  *rstd = scale;
}

// Accumulates one row's contribution to the gradients of weight and bias.
TORCH_XLA_MULTIVERSION void add_to_gradients(int64_t n, const float* grad, const float* x, float mean, float rstd,
                                             float* of_weight, float* of_bias) {
  _Pragma("GCC ivdep") for (int64_t i = 0; i < n; ++i) {
    of_weight[i] += grad[i] * (x[i] - mean) * rstd;
    of_bias[i] += grad[i];
  }
}

TORCH_XLA_MULTIVERSION void gradient(int64_t n, const float* grad, const float* x, float mean, float rstd,
                                     const float* weight, float* of_x) {
  const float all = sum_of(n, [&](int64_t i) __attribute__((always_inline)) { return grad[i] * weight[i]; }) / n;
  const float along =
      sum_of(n, [&](int64_t i) __attribute__((always_inline)) { return grad[i] * weight[i] * (x[i] - mean); }) * rstd /
      n;
  _Pragma("GCC ivdep") for (int64_t i = 0; i < n; ++i) {
    of_x[i] = rstd * (grad[i] * weight[i] - all - (x[i] - mean) * rstd * along);
  }
}

// Operands: x, weight, bias. Results: the output, the mean and 1 / standard deviation of each row. Attribute: eps.
ffi::Error layer_norm(ffi::ThreadPool pool, ffi::RemainingArgs operands, ffi::RemainingRets results,
                      ffi::Dictionary dictionary) {
  return catch_errors("aten::native_layer_norm", [&] {
    const auto x = *operands.get<ffi::AnyBuffer>(0), weight = *operands.get<ffi::AnyBuffer>(1);
    const float* bias = memory(*operands.get<ffi::AnyBuffer>(2));
    float* out = memory(**results.get<ffi::AnyBuffer>(0));
    float* mean = memory(**results.get<ffi::AnyBuffer>(1));
    float* rstd = memory(**results.get<ffi::AnyBuffer>(2));
    const auto eps = static_cast<float>(Attributes(dictionary).real("eps"));
    const auto n = static_cast<int64_t>(weight.element_count()), all = static_cast<int64_t>(x.element_count());
    parallel_if_large(pool, all / n, all, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        normalize(n, memory(x) + i * n, memory(weight), bias, eps, out + i * n, mean + i, rstd + i);
      }
    });
  });
}

// Operands: the gradient, x, the mean and 1 / standard deviation of each row, weight. Results: the gradients of x,
// weight and bias selected by the attribute `mask`.
ffi::Error layer_norm_backward(ffi::ThreadPool pool, ffi::RemainingArgs operands, ffi::RemainingRets results,
                               ffi::Dictionary dictionary) {
  return catch_errors("aten::native_layer_norm_backward", [&] {
    const auto grad = *operands.get<ffi::AnyBuffer>(0), weights = *operands.get<ffi::AnyBuffer>(4);
    const float *of_out = memory(grad), *x = memory(*operands.get<ffi::AnyBuffer>(1)), *weight = memory(weights);
    const float *mean = memory(*operands.get<ffi::AnyBuffer>(2)), *rstd = memory(*operands.get<ffi::AnyBuffer>(3));
    float* found[3] = {};
    size_t next = 0;
    const auto mask = Attributes(dictionary).integers("mask");
    for (size_t i = 0; i < 3; ++i) {
      found[i] = mask[i] != 0 ? memory(**results.get<ffi::AnyBuffer>(next++)) : nullptr;
    }
    const auto n = static_cast<int64_t>(weights.element_count()), all = static_cast<int64_t>(grad.element_count());
    const int64_t rows = all / n, partitions = (rows + kRowsPerTile - 1) / kRowsPerTile;
    const bool sums = found[1] != nullptr || found[2] != nullptr;
    std::vector<float> of_weight(sums ? partitions * n : 0), of_bias(sums ? partitions * n : 0);
    parallel_if_large(pool, partitions, 2 * all, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * kRowsPerTile; i < std::min(rows, end * kRowsPerTile); ++i) {
        const int64_t row = i * n, partition = i / kRowsPerTile * n;
        if (sums) {
          add_to_gradients(n, of_out + row, x + row, mean[i], rstd[i], &of_weight[partition], &of_bias[partition]);
        }
        if (found[0] != nullptr) {
          gradient(n, of_out + row, x + row, mean[i], rstd[i], weight, found[0] + row);
        }
      }
    });
    if (found[1] != nullptr) {
      add_partial_sums(partitions, n, of_weight.data(), found[1]);
    }
    if (found[2] != nullptr) {
      add_partial_sums(partitions, n, of_bias.data(), found[2]);
    }
  });
}

}  // namespace
}  // namespace torch_xla::handlers

TORCH_XLA_HANDLER_OF(layer_norm, torch_xla::handlers::layer_norm)
TORCH_XLA_HANDLER_OF(layer_norm_backward, torch_xla::handlers::layer_norm_backward)
