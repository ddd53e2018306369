// Convolutions with kernels of one tap (1x1), as matrix multiplications.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace torch_xla::handlers {

// Returns whether the functions below compute this convolution, and faster than oneDNN, which copies images into its own
// layout and back: float32, one group, each output is the product of the weight with one pixel of the image, and an
// image has one pixel or enough of them for a matrix multiplication.
bool has_pointwise_convolution(const at::Tensor& image, const at::Tensor& weight, at::IntArrayRef outputs,
                               at::IntArrayRef padding, int64_t groups);

// Shapes: image [N, I, ...], weight [O, I, 1...], bias [O], out and grad [N, O, ...]. Call them on the kernel thread.
void pointwise_convolution_out(at::Tensor& out, const at::Tensor& image, const at::Tensor& weight,
                               const std::optional<at::Tensor>& bias);
void pointwise_image_gradient_out(at::Tensor& out, const at::Tensor& grad, const at::Tensor& weight);

// Returns the gradient of the weight, [O, I].
at::Tensor pointwise_weight_gradient(const at::Tensor& grad, const at::Tensor& image);

}  // namespace torch_xla::handlers
