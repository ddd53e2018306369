// Per-channel sums of float32 arrays [images, channels, positions], for batch normalization and its gradients. XLA
// computes the elementwise part, which it fuses with later operations.

#include <vector>

#include "kernels/row_reduction.h"

namespace torch_xla::handlers {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kMinPositions = 32;  // smaller images are summed image by image, over all channels together

enum class ChannelSums {
  kValues,
  kSquares,   // of deviations from the mean
  kProducts,  // of values with the deviation of x from the mean
};

TORCH_XLA_MULTIVERSION float sum_of_row(ChannelSums of, int64_t n, const float* from, const float* x, float mean) {
  switch (of) {
    case ChannelSums::kValues:
      return sum_of(n, [&](int64_t i) __attribute__((always_inline)) { return from[i]; });
    case ChannelSums::kSquares:
      return sum_of(n, [&](int64_t i) __attribute__((always_inline)) { return (from[i] - mean) * (from[i] - mean); });
    default:
      return sum_of(n, [&](int64_t i) __attribute__((always_inline)) { return from[i] * (x[i] - mean); });
  }
}

TORCH_XLA_MULTIVERSION void add_row(ChannelSums of, int64_t n, const float* from, const float* x, const float* mean,
                                    float* to) {
#define EACH(VALUE)                                                        \
  _Pragma("GCC ivdep") for (int64_t i = 0; i < n; ++i) { to[i] += VALUE; } \
  break;
  switch (of) {
    case ChannelSums::kValues:
      EACH(from[i])
    case ChannelSums::kSquares:
      EACH((from[i] - mean[i]) * (from[i] - mean[i]))
    case ChannelSums::kProducts:
      EACH(from[i] * (x[i] - mean[i]))
  }
#undef EACH
}

class Channels {
 public:
  explicit Channels(ffi::AnyBuffer x)
      : images_(x.dimensions()[0]), channels_(x.dimensions()[1]), positions_(x.dimensions()[2]) {}

  float elements_of_each() const { return static_cast<float>(images_ * positions_); }

  // Runs `work(begin, end)` for partitions of the channels, in parallel if large.
  void for_partitions(ffi::ThreadPool& pool, const std::function<void(int64_t begin, int64_t end)>& work) const {
    const int64_t each = positions_ < kMinPositions ? std::max<int64_t>(1, kColumnsPerTile / positions_) : 1;
    const int64_t partitions = (channels_ + each - 1) / each;
    handlers::parallel_if_large(pool, partitions, images_ * channels_ * positions_, [&](int64_t begin, int64_t end) {
      for (int64_t partition = begin; partition < end; ++partition) {
        work(partition * each, std::min(channels_, (partition + 1) * each));
      }
    });
  }

  // Computes the sum of each channel in [begin, end). `middles` and `to` have one element per channel.
  void sum(ChannelSums of, int64_t begin, int64_t end, const float* from, const float* x, const float* means,
           float* to) const {
    if (positions_ < kMinPositions) {
      sum_columns(of, begin, end - begin, from, x, means, to);
      return;
    }
    for (int64_t channel = begin; channel < end; ++channel) {
      double all = 0;
      for (int64_t image = 0; image < images_; ++image) {
        const int64_t at = (image * channels_ + channel) * positions_;
        all += sum_of_row(of, positions_, from + at, x + at, of == ChannelSums::kValues ? 0 : means[channel]);
      }
      to[channel] = static_cast<float>(all);
    }
  }

 private:
  void sum_columns(ChannelSums of, int64_t channel, int64_t count, const float* from, const float* x,
                   const float* means, float* to) const {
    const int64_t n = count * positions_;
    std::vector<float> mean(n), some(n);
    std::vector<double> all(count);
    for (int64_t i = 0; i < n && of != ChannelSums::kValues; ++i) {
      mean[i] = means[channel + i / positions_];
    }
    for (int64_t image = 0; image < images_; ++image) {
      const int64_t at = (image * channels_ + channel) * positions_;
      add_row(of, n, from + at, x + at, mean.data(), some.data());
      if ((image + 1) % kRowsPerTile == 0 || image + 1 == images_) {
        for (int64_t i = 0; i < n; ++i) {
          all[i / positions_] += some[i];
          some[i] = 0;
        }
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      to[channel + i] = static_cast<float>(all[i]);
    }
  }

  int64_t images_, channels_, positions_;
};

// Operand: x. Results: the mean and the variance of each channel.
ffi::Error batch_statistics(ffi::ThreadPool pool, ffi::RemainingArgs operands, ffi::RemainingRets results,
                            ffi::Dictionary) {
  return catch_errors("aten::native_batch_norm", [&] {
    const auto buffer = *operands.get<ffi::AnyBuffer>(0);
    const float* x = memory(buffer);
    float *mean = memory(**results.get<ffi::AnyBuffer>(0)), *variance = memory(**results.get<ffi::AnyBuffer>(1));
    const Channels channels(buffer);
    const float n = channels.elements_of_each();
    channels.for_partitions(pool, [&](int64_t begin, int64_t end) {
      channels.sum(ChannelSums::kValues, begin, end, x, x, nullptr, mean);
      std::for_each(mean + begin, mean + end, [&](float& value) { value /= n; });
      channels.sum(ChannelSums::kSquares, begin, end, x, x, mean, variance);
      std::for_each(variance + begin, variance + end, [&](float& value) { value /= n; });
    });
  });
}

// Operands: the gradient, x, the mean of each channel. Results: the sums of the gradient, and of its products with the
// deviation of x from the mean.
ffi::Error batch_gradients(ffi::ThreadPool pool, ffi::RemainingArgs operands, ffi::RemainingRets results,
                           ffi::Dictionary) {
  return catch_errors("aten::native_batch_norm_backward", [&] {
    const auto buffer = *operands.get<ffi::AnyBuffer>(0);
    const float *grad = memory(buffer), *x = memory(*operands.get<ffi::AnyBuffer>(1));
    const float* mean = memory(*operands.get<ffi::AnyBuffer>(2));
    float *all = memory(**results.get<ffi::AnyBuffer>(0)), *along = memory(**results.get<ffi::AnyBuffer>(1));
    const Channels channels(buffer);
    channels.for_partitions(pool, [&](int64_t begin, int64_t end) {
      channels.sum(ChannelSums::kValues, begin, end, grad, x, mean, all);
      channels.sum(ChannelSums::kProducts, begin, end, grad, x, mean, along);
    });
  });
}

}  // namespace
}  // namespace torch_xla::handlers

TORCH_XLA_HANDLER_OF(batch_statistics, torch_xla::handlers::batch_statistics)
TORCH_XLA_HANDLER_OF(batch_gradients, torch_xla::handlers::batch_gradients)
