// The weight gradient of a depthwise convolution.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace torch_xla::handlers {

// Returns whether depthwise_weight_gradient computes this gradient, and faster than ATen, which has fast code for
// kernels of up to 3 x 3 only: one or two dimensions, float32, stride 1, one kernel per channel.
bool has_depthwise_weight_gradient(const at::Tensor& image, const at::Tensor& weight, at::IntArrayRef stride,
                                   int64_t groups);

// Returns the gradient of the weight, float32[C, 1, taps...]: for each tap the sum over all images of the products of
// `grad`, float32[N, C, outputs...], with the elements of `image`, float32[N, C, ...], that the tap multiplies. Call it
// on the kernel thread. The result does not depend on the number of threads. It is not finite where ATen's is not, and
// possibly at more taps: zeros beside the gradient meet the infinities of an image.
at::Tensor depthwise_weight_gradient(const at::Tensor& grad, const at::Tensor& image, const at::Tensor& weight,
                                     at::IntArrayRef padding, at::IntArrayRef dilation);

}  // namespace torch_xla::handlers
