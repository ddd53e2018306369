// The loop over time of one LSTM layer in float32, forward and backward. Each thread of the team computes some of the
// sequences for all steps: they do not wait for each other.
//
// Shapes: T steps, B sequences, H hidden units. The gates of a row are i, f, g, o, with H numbers each.

#include <ATen/ops/addmm.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <c10/core/InferenceMode.h>

#include <bit>

#include "kernels/row_reduction.h"
#include "threading/kernel_thread.h"
#include "threading/openmp.h"

namespace torch_xla::handlers {
namespace {

namespace ffi = xla::ffi;

#define TORCH_XLA_INLINE __attribute__((always_inline)) inline

// Vectorizable, with an error of 2 ulp; the algorithm is that of Cephes (expf.c). NaN stays NaN.
TORCH_XLA_INLINE float exp_of(float x) {
  constexpr float kRound = 0x1.8p23F;  // adding it rounds to an integer, which the lowest bits then contain
  x = x > 88.37F ? 88.37F : x;
  x = x < -87.33F ? -87.33F : x;
  const float shifted = x * 1.44269504F + kRound, n = shifted - kRound;
  const float r = x - n * 0.693359375F + n * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  const auto power = std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) + 127U) << 23U);
  return (p * r * r + r + 1.0F) * power;
}

TORCH_XLA_INLINE float sigmoid_of(float x) { return 1.0F / (1.0F + exp_of(-x)); }

TORCH_XLA_INLINE float tanh_of(float x) {
  const float size = x < 0 ? -x : x, square = x * x;
  float p = -5.70498872745e-3F;  // Cephes (tanhf.c), below 0.625
  p = p * square + 2.06390887954e-2F;
  p = p * square - 5.37397155531e-2F;
  p = p * square + 1.33314422036e-1F;
  p = p * square - 3.33332819422e-1F;
  const float large = 1.0F - 2.0F / (exp_of(2.0F * size) + 1.0F);
  return size < 0.625F ? p * square * x + x : (x < 0 ? -large : large);
}

// One row of one step. `cell` may not overlap `cell_before`.
TORCH_XLA_MULTIVERSION void cell_forward(int64_t h, const float* gates, const float* cell_before, float* cell,
                                         float* out) {
  _Pragma("GCC ivdep") for (int64_t k = 0; k < h; ++k) {
    const float i = sigmoid_of(gates[k]), f = sigmoid_of(gates[h + k]), g = tanh_of(gates[2 * h + k]);
    cell[k] = f * cell_before[k] + i * g;
    out[k] = sigmoid_of(gates[3 * h + k]) * tanh_of(cell[k]);
  }
}

// The gradients of one row of one step. `of_cell` is that of the cell state, on return that of the state before.
TORCH_XLA_MULTIVERSION void cell_backward(int64_t h, const float* gates, const float* cell_before, const float* cell,
                                          const float* of_out, const float* of_hidden, float* of_cell,
                                          float* of_gates) {
  _Pragma("GCC ivdep") for (int64_t k = 0; k < h; ++k) {
    const float i = sigmoid_of(gates[k]), f = sigmoid_of(gates[h + k]), g = tanh_of(gates[2 * h + k]);
    const float o = sigmoid_of(gates[3 * h + k]), c = tanh_of(cell[k]), of_h = of_out[k] + of_hidden[k];
    const float of_c = of_cell[k] + of_h * o * (1.0F - c * c);
    of_gates[k] = of_c * g * i * (1.0F - i);
    of_gates[h + k] = of_c * cell_before[k] * f * (1.0F - f);
    of_gates[2 * h + k] = of_c * i * (1.0F - g * g);
    of_gates[3 * h + k] = of_h * c * o * (1.0F - o);
    of_cell[k] = of_c * f;
  }
}

at::Tensor rows(const float* first, int64_t count, int64_t width) {
  return at::from_blob(const_cast<float*>(first), {count, width}, at::TensorOptions(at::kFloat));
}

// The sizes of a layer, and the order of its steps.
struct Loop {
  int64_t steps, batch, hidden;
  bool reverse;

  int64_t step(int64_t n) const { return reverse ? steps - 1 - n : n; }
  // The row of the n-th step in an array [T, B, width], and that of the step before, which is in `first` for n = 0.
  template <typename T>
  T* at(T* all, int64_t n, int64_t row, int64_t width) const {
    return all + (step(n) * batch + row) * width;
  }
  const float* before(const float* first, const float* all, int64_t n, int64_t row) const {
    return n == 0 ? first + row * hidden : at(all, n - 1, row, hidden);
  }
};

Loop loop_over(ffi::AnyBuffer states, bool reverse) {
  const auto sizes = states.dimensions();
  return {sizes[0], sizes[1], sizes[2], reverse};
}

// Calls `work` for ranges of sequences on the threads of the team.
void for_sequences(const Loop& loop, const std::function<void(int64_t begin, int64_t end)>& work) {
  run_on_kernel_thread([&] {
    parallel_for(loop.batch, [&](int64_t begin, int64_t end) {
      const c10::InferenceMode no_autograd;
      work(begin, end);
    });
  });
}

// Operands: the projected inputs with both biases [T, B, 4H], the first states h and c [B, H], the weights [H, 4H].
// Results: the hidden states [T, B, H], the gates before their activations (in the memory of the inputs), the cell
// states [T, B, H]. Attribute: reverse.
ffi::Error lstm(ffi::ThreadPool, ffi::RemainingArgs operands, ffi::RemainingRets results, ffi::Dictionary dictionary) {
  return catch_errors("aten::lstm", [&] {
    const float *h = memory(*operands.get<ffi::AnyBuffer>(1)), *c = memory(*operands.get<ffi::AnyBuffer>(2));
    const float* weight = memory(*operands.get<ffi::AnyBuffer>(3));
    float *out = memory(**results.get<ffi::AnyBuffer>(0)), *gates = memory(**results.get<ffi::AnyBuffer>(1));
    float* cells = memory(**results.get<ffi::AnyBuffer>(2));
    const Loop loop = loop_over(**results.get<ffi::AnyBuffer>(0), Attributes(dictionary).flag("reverse"));
    const int64_t n_hidden = loop.hidden;
    for_sequences(loop, [&](int64_t begin, int64_t end) {
      const at::Tensor w = rows(weight, n_hidden, 4 * n_hidden);
      for (int64_t n = 0; n < loop.steps; ++n) {
        at::Tensor now = rows(loop.at(gates, n, begin, 4 * n_hidden), end - begin, 4 * n_hidden);
        at::addmm_out(now, now, rows(loop.before(h, out, n, begin), end - begin, n_hidden), w);
        for (int64_t row = begin; row < end; ++row) {
          cell_forward(n_hidden, loop.at(gates, n, row, 4 * n_hidden), loop.before(c, cells, n, row),
                       loop.at(cells, n, row, n_hidden), loop.at(out, n, row, n_hidden));
        }
      }
    });
  });
}

// Operands: the gradient of the hidden states [T, B, H], the gates [T, B, 4H], the cell states [T, B, H], the first
// cell state [B, H], the weights [4H, H], the gradients of the last h and c [B, H]. Results: the gradients of the
// gates [T, B, 4H], and of the first h and c (in the memory of the last). Attribute: reverse, as in the forward pass.
ffi::Error lstm_backward(ffi::ThreadPool, ffi::RemainingArgs operands, ffi::RemainingRets results,
                         ffi::Dictionary dictionary) {
  return catch_errors("aten::lstm_backward", [&] {
    const auto operand = [&](size_t i) { return memory(*operands.get<ffi::AnyBuffer>(i)); };
    const float *of_out = operand(0), *gates = operand(1), *cells = operand(2), *c = operand(3), *weight = operand(4);
    float* of_gates = memory(**results.get<ffi::AnyBuffer>(0));
    float *of_h = memory(**results.get<ffi::AnyBuffer>(1)), *of_c = memory(**results.get<ffi::AnyBuffer>(2));
    const Loop loop = loop_over(*operands.get<ffi::AnyBuffer>(0), Attributes(dictionary).flag("reverse"));
    const int64_t n_hidden = loop.hidden;
    for_sequences(loop, [&](int64_t begin, int64_t end) {
      const at::Tensor w = rows(weight, 4 * n_hidden, n_hidden);
      at::Tensor of_hidden = rows(of_h + begin * n_hidden, end - begin, n_hidden);
      for (int64_t n = loop.steps - 1; n >= 0; --n) {
        for (int64_t row = begin; row < end; ++row) {
          cell_backward(n_hidden, loop.at(gates, n, row, 4 * n_hidden), loop.before(c, cells, n, row),
                        loop.at(cells, n, row, n_hidden), loop.at(of_out, n, row, n_hidden), of_h + row * n_hidden,
                        of_c + row * n_hidden, loop.at(of_gates, n, row, 4 * n_hidden));
        }
        at::mm_out(of_hidden, rows(loop.at(of_gates, n, begin, 4 * n_hidden), end - begin, 4 * n_hidden), w);
      }
    });
  });
}

}  // namespace
}  // namespace torch_xla::handlers

TORCH_XLA_HANDLER_OF(lstm, torch_xla::handlers::lstm)
TORCH_XLA_HANDLER_OF(lstm_backward, torch_xla::handlers::lstm_backward)
