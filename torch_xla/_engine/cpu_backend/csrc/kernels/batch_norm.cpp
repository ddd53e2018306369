// Sums over each channel of float32 arrays [images, channels, places], for batch normalisation and its gradients. What
// is done with each element is left to XLA, which fuses it with what comes after.

#include <vector>

#include "kernels/row_reduction.h"

namespace torch_xla::handlers {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kFewPlaces = 32;  // fewer are summed up image by image, all channels beside each other

enum class ChannelSums {
  kValues,
  kSquares,   // of what values are beyond the middle
  kProducts,  // of values and what those of x are beyond the middle
};

TORCH_XLA_MULTIVERSION float sum_of_row(ChannelSums of, int64_t n, const float* from, const float* x, float middle) {
  switch (of) {
    case ChannelSums::kValues:
      return sum_of(n, [&](int64_t i) __attribute__((always_inline)) { return from[i]; });
    case ChannelSums::kSquares:
      return sum_of(n,
                    [&](int64_t i) __attribute__((always_inline)) { return (from[i] - middle) * (from[i] - middle); });
    default:
      return sum_of(n, [&](int64_t i) __attribute__((always_inline)) { return from[i] * (x[i] - middle); });
  }
}

TORCH_XLA_MULTIVERSION void add_row(ChannelSums of, int64_t n, const float* from, const float* x, const float* middle,
                                    float* to) {
#define EACH(VALUE)                                                        \
  _Pragma("GCC ivdep") for (int64_t i = 0; i < n; ++i) { to[i] += VALUE; } \
  break;
  switch (of) {
    case ChannelSums::kValues:
      EACH(from[i])
    case ChannelSums::kSquares:
      EACH((from[i] - middle[i]) * (from[i] - middle[i]))
    case ChannelSums::kProducts:
      EACH(from[i] * (x[i] - middle[i]))
  }
#undef EACH
}

class Channels {
 public:
  explicit Channels(ffi::AnyBuffer x)
      : images_(x.dimensions()[0]), channels_(x.dimensions()[1]), places_(x.dimensions()[2]) {}

  float elements_of_each() const { return static_cast<float>(images_ * places_); }

  // Runs `work(begin, end)` for parts of the channels.
  void in_parts(const std::function<void(int64_t begin, int64_t end)>& work) const {
    const int64_t each = places_ < kFewPlaces ? std::max<int64_t>(1, kColumnsOfPart / places_) : 1;
    const int64_t parts = (channels_ + each - 1) / each;
    handlers::parallel_if_large(parts, images_ * channels_ * places_, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        work(part * each, std::min(channels_, (part + 1) * each));
      }
    });
  }

  // The sum of each of these channels. `middles` and `to` have a number for each of all.
  void sum(ChannelSums of, int64_t begin, int64_t end, const float* from, const float* x, const float* middles,
           float* to) const {
    if (places_ < kFewPlaces) {
      sum_columns(of, begin, end - begin, from, x, middles, to);
      return;
    }
    for (int64_t channel = begin; channel < end; ++channel) {
      double all = 0;
      for (int64_t image = 0; image < images_; ++image) {
        const int64_t at = (image * channels_ + channel) * places_;
        all += sum_of_row(of, places_, from + at, x + at, of == ChannelSums::kValues ? 0 : middles[channel]);
      }
      to[channel] = static_cast<float>(all);
    }
  }

 private:
  void sum_columns(ChannelSums of, int64_t channel, int64_t count, const float* from, const float* x,
                   const float* middles, float* to) const {
    const int64_t n = count * places_;
    std::vector<float> middle(n), some(n);
    std::vector<double> all(count);
    for (int64_t i = 0; i < n && of != ChannelSums::kValues; ++i) {
      middle[i] = middles[channel + i / places_];
    }
    for (int64_t image = 0; image < images_; ++image) {
      const int64_t at = (image * channels_ + channel) * places_;
      add_row(of, n, from + at, x + at, middle.data(), some.data());
      if ((image + 1) % kRowsOfPart == 0 || image + 1 == images_) {
        for (int64_t i = 0; i < n; ++i) {
          all[i / places_] += some[i];
          some[i] = 0;
        }
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      to[channel + i] = static_cast<float>(all[i]);
    }
  }

  int64_t images_, channels_, places_;
};

// Operand: x. Results: the mean and the variance of each channel.
ffi::Error batch_statistics(ffi::RemainingArgs operands, ffi::RemainingRets results, ffi::Dictionary) {
  return catch_errors("aten::native_batch_norm", [&] {
    const auto buffer = *operands.get<ffi::AnyBuffer>(0);
    const float* x = memory(buffer);
    float *mean = memory(**results.get<ffi::AnyBuffer>(0)), *variance = memory(**results.get<ffi::AnyBuffer>(1));
    const Channels channels(buffer);
    const float n = channels.elements_of_each();
    channels.in_parts([&](int64_t begin, int64_t end) {
      channels.sum(ChannelSums::kValues, begin, end, x, x, nullptr, mean);
      std::for_each(mean + begin, mean + end, [&](float& value) { value /= n; });
      channels.sum(ChannelSums::kSquares, begin, end, x, x, mean, variance);
      std::for_each(variance + begin, variance + end, [&](float& value) { value /= n; });
    });
  });
}

// Operands: the gradient, x, the mean of each channel. Results: the sums of the gradient, and of its products with what
// x is beyond the mean.
ffi::Error batch_gradients(ffi::RemainingArgs operands, ffi::RemainingRets results, ffi::Dictionary) {
  return catch_errors("aten::native_batch_norm_backward", [&] {
    const auto buffer = *operands.get<ffi::AnyBuffer>(0);
    const float *grad = memory(buffer), *x = memory(*operands.get<ffi::AnyBuffer>(1));
    const float* mean = memory(*operands.get<ffi::AnyBuffer>(2));
    float *all = memory(**results.get<ffi::AnyBuffer>(0)), *along = memory(**results.get<ffi::AnyBuffer>(1));
    const Channels channels(buffer);
    channels.in_parts([&](int64_t begin, int64_t end) {
      channels.sum(ChannelSums::kValues, begin, end, grad, x, mean, all);
      channels.sum(ChannelSums::kProducts, begin, end, grad, x, mean, along);
    });
  });
}

}  // namespace
}  // namespace torch_xla::handlers

TORCH_XLA_HANDLER_OF(batch_statistics, torch_xla::handlers::batch_statistics)
TORCH_XLA_HANDLER_OF(batch_gradients, torch_xla::handlers::batch_gradients)
