// The weight gradient of a depthwise convolution with stride 1, as one correlation per channel of flattened images.
//
// The image is copied with its padding, and the gradient with zeros to the same row length. Then one distance in memory
// leads from each element of the gradient to the element that a tap multiplies, also over the ends of rows, and the
// loop over an image is one loop for all taps of a row of the kernel, which reads each gradient once.

#include "kernels/depthwise_gradient.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/multiversion.h"
#include "threading/openmp.h"

namespace torch_xla::handlers {
namespace {

constexpr int64_t kLanes = 16, kMostTaps = 7;  // taps whose sums stay in registers
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));

inline __attribute__((always_inline)) Lanes load(const float* from) {
  Lanes result;
  std::memcpy(&result, from, sizeof(result));
  return result;
}

template <int64_t taps>
__attribute__((always_inline)) inline void add_products(int64_t count, const float* grad, const float* image,
                                                        int64_t distance, double* sums) {
  Lanes lanes[taps] = {};
  for (int64_t i = 0; i < count; i += kLanes) {
    const Lanes own = load(grad + i);
#pragma GCC unroll 8
    for (int64_t tap = 0; tap < taps; ++tap) {
      lanes[tap] += own * load(image + i + tap * distance);
    }
  }
  for (int64_t tap = 0; tap < taps; ++tap) {
    float sum = 0;
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      sum += lanes[tap][lane];
    }
    sums[tap] += sum;
  }
}

// sums[tap] += the sum of grad[i] * image[i + tap * distance], for up to kMostTaps taps; count is a multiple of kLanes.
TORCH_XLA_MULTIVERSION void correlate(int64_t taps, int64_t count, const float* grad, const float* image,
                                      int64_t distance, double* sums) {
  switch (taps) {
    case 1:
      return add_products<1>(count, grad, image, distance, sums);
    case 2:
      return add_products<2>(count, grad, image, distance, sums);
    case 3:
      return add_products<3>(count, grad, image, distance, sums);
    case 4:
      return add_products<4>(count, grad, image, distance, sums);
    case 5:
      return add_products<5>(count, grad, image, distance, sums);
    case 6:
      return add_products<6>(count, grad, image, distance, sums);
    default:
      return add_products<kMostTaps>(count, grad, image, distance, sums);
  }
}

struct Size {
  int64_t height, width;  // 1 for the height of a one-dimensional image
  int64_t area() const { return height * width; }
};

Size size_of(at::IntArrayRef sizes) {  // of a tensor [N, C, ...]
  return sizes.size() == 4 ? Size{sizes[2], sizes[3]} : Size{1, sizes[2]};
}

Size pair_of(at::IntArrayRef values, int64_t of_one_dimension) {
  return values.size() == 2 ? Size{values[0], values[1]} : Size{of_one_dimension, values[0]};
}

void copy_rows(const float* from, Size size, int64_t row_length, float* to) {
  for (int64_t row = 0; row < size.height; ++row) {
    std::copy_n(from + row * size.width, size.width, to + row * row_length);
  }
}

}  // namespace

bool has_depthwise_weight_gradient(const at::Tensor& image, const at::Tensor& weight, at::IntArrayRef stride,
                                   int64_t groups) {
  const auto is_one = [](int64_t each) { return each == 1; };
  return image.scalar_type() == at::kFloat && image.dim() <= 4 && std::all_of(stride.begin(), stride.end(), is_one) &&
         groups == image.size(1) && groups == weight.size(0) && weight.size(1) == 1 &&
         std::max(size_of(weight.sizes()).height, size_of(weight.sizes()).width) > 3;
}

at::Tensor depthwise_weight_gradient(const at::Tensor& given_grad, const at::Tensor& given_image,
                                     const at::Tensor& weight, at::IntArrayRef padding, at::IntArrayRef dilation) {
  const at::Tensor grad = given_grad.contiguous(), image = given_image.contiguous();
  at::Tensor result = at::empty(weight.sizes(), weight.options());
  const Size from = size_of(image.sizes()), outputs = size_of(grad.sizes()), taps = size_of(weight.sizes());
  const Size pad = pair_of(padding, 0), step = pair_of(dilation, 1);
  const int64_t row = from.width + 2 * pad.width, channels = image.size(1);
  const int64_t count = (outputs.height * row + kLanes - 1) / kLanes * kLanes;
  const int64_t groups = (taps.width + kMostTaps - 1) / kMostTaps;
  parallel_for(channels, [&](int64_t begin, int64_t end) {
    // Elements beside the image stay zero: each copy writes the same ones.
    std::vector<float> grads(count), padded(count + (taps.height - 1) * step.height * row + taps.width * step.width);
    for (int64_t channel = begin; channel < end; ++channel) {
      std::vector<double> sums(taps.area());
      for (int64_t n = 0; n < image.size(0); ++n) {
        const int64_t at = n * channels + channel;
        copy_rows(grad.const_data_ptr<float>() + at * outputs.area(), outputs, row, grads.data());
        copy_rows(image.const_data_ptr<float>() + at * from.area(), from, row,
                  padded.data() + pad.height * row + pad.width);
        for (int64_t i = 0; i < taps.height * groups; ++i) {
          const int64_t y = i / groups, first = i % groups * taps.width / groups,
                        last = (i % groups + 1) * taps.width / groups;
          correlate(last - first, count, grads.data(), padded.data() + y * step.height * row + first * step.width,
                    step.width, &sums[y * taps.width + first]);
        }
      }
      std::copy(sums.begin(), sums.end(), result.data_ptr<float>() + channel * taps.area());
    }
  });
  return result;
}

}  // namespace torch_xla::handlers
