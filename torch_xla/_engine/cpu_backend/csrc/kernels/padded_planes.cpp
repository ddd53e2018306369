// Copies between images and the layout of depthwise_convolution.cpp.

#include "kernels/padded_planes.h"

#include <algorithm>

namespace torch_xla::handlers {
namespace {

Size size_of(at::IntArrayRef sizes) {  // of a tensor [N, C, ...]
  return sizes.size() == 4 ? Size{sizes[2], sizes[3]} : Size{1, sizes[2]};
}

Size pair_of(at::IntArrayRef values, int64_t of_one_dimension) {
  return values.size() == 2 ? Size{values[0], values[1]} : Size{of_one_dimension, values[0]};
}

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

PaddedPlanes::PaddedPlanes(at::IntArrayRef images, at::IntArrayRef outputs, at::IntArrayRef kernel,
                           at::IntArrayRef strides, at::IntArrayRef padding, at::IntArrayRef dilations)
    : image(size_of(images)),
      output(size_of(outputs)),
      taps(size_of(kernel)),
      stride(pair_of(strides, 1)),
      pad(pair_of(padding, 0)),
      phase{(image.height + 2 * pad.height + stride.height - 1) / stride.height,
            (image.width + 2 * pad.width + stride.width - 1) / stride.width},
      count(round_up(output.height * phase.width, kPlaneBlock)),
      phase_length(round_up(phase.area(), kPlaneBlock)) {
  const Size dilation = pair_of(dilations, 1);
  for (int64_t row = 0; row < taps.height; ++row) {
    for (int64_t column = 0; column < taps.width; ++column) {
      offsets.push_back(position_of(row * dilation.height, column * dilation.width));
    }
  }
  for (int64_t row = 0; row < image.height; ++row) {
    for (int64_t column = 0; column < stride.width; ++column) {
      starts_.push_back(position_of(row + pad.height, column + pad.width));
    }
  }
  length =
      std::max(phase_count() * phase.area(), *std::max_element(offsets.begin(), offsets.end()) + count) + kPlaneBlock;
}

int64_t PaddedPlanes::position_of(int64_t row, int64_t column) const {
  const int64_t at = row % stride.height * stride.width + column % stride.width;
  return at * phase.area() + row / stride.height * phase.width + column / stride.width;
}

void PaddedPlanes::copy_image(const float* from, float* padded) const {
  const int64_t* start = starts_.data();
  for (int64_t row = 0; row < image.height; ++row, from += image.width) {
    for (int64_t first = 0; first < stride.width; ++first) {
      float* to = padded + *start++;
      for (int64_t column = first; column < image.width; column += stride.width) {
        *to++ = from[column];
      }
    }
  }
}

void PaddedPlanes::copy_back(const float* padded, float* to) const {
  const int64_t* start = starts_.data();
  for (int64_t row = 0; row < image.height; ++row, to += image.width) {
    for (int64_t first = 0; first < stride.width; ++first) {
      const float* from = padded + *start++;
      for (int64_t column = first; column < image.width; column += stride.width) {
        to[column] = *from++;
      }
    }
  }
}

void PaddedPlanes::copy_outputs(const float* from, float* rows) const {
  for (int64_t row = 0; row < output.height; ++row) {
    std::copy_n(from + row * output.width, output.width, rows + row * phase.width);
  }
}

void PaddedPlanes::copy_outputs_back(const float* rows, float* to) const {
  for (int64_t row = 0; row < output.height; ++row) {
    std::copy_n(rows + row * phase.width, output.width, to + row * output.width);
  }
}

}  // namespace torch_xla::handlers
