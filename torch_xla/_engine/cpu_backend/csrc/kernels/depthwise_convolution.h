// Depthwise convolutions, with one kernel for each channel, and their gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace torch_xla::handlers {

struct Geometry {
  at::IntArrayRef stride, padding, dilation;
};

// Returns whether the functions below compute this convolution: one or two dimensions, float32, one kernel for each
// channel, finite weights (products of padding with others are not numbers, and oneDNN leaves them out).
bool has_depthwise_convolution(const at::Tensor& image, const at::Tensor& weight, int64_t groups);

// Shapes: image [N, C, ...], weight [C, 1, taps...], bias [C], out and grad [N, C, outputs...]. Call them on the kernel
// thread. The results do not depend on the number of threads.
void depthwise_convolution_out(at::Tensor& out, const at::Tensor& image, const at::Tensor& weight,
                               const std::optional<at::Tensor>& bias, const Geometry& geometry);
void depthwise_image_gradient_out(at::Tensor& out, const at::Tensor& grad, const at::Tensor& weight,
                                  const Geometry& geometry);

// Returns the gradient of the weight: for each tap the sum over all images of the products of `grad` with the elements
// of `image` that the tap multiplies. It is not finite where ATen's is not, and possibly at more taps: zeros beside the
// gradient meet the infinities of an image.
at::Tensor depthwise_weight_gradient(const at::Tensor& grad, const at::Tensor& image, const at::Tensor& weight,
                                     const Geometry& geometry);

}  // namespace torch_xla::handlers
