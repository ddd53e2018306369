// Convolutions with kernels of one tap: a matrix multiplication of the weight and each image, [O, I] x [I, pixels].

#include "kernels/pointwise_convolution.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>
#include <c10/util/accumulate.h>

#include <algorithm>

namespace torch_xla::handlers {
namespace {

// Pixels of an image below which oneDNN is faster, except for images of one pixel, which are one multiplication.
constexpr int64_t kFewestPixels = 16;

int64_t pixels_of(const at::Tensor& images) { return c10::multiply_integers(images.sizes().slice(2)); }

// Returns a matrix for each image, [N, I, pixels] as a view.
at::Tensor matrices_of(const at::Tensor& images) { return images.flatten(2); }

// Returns a row for each image of one pixel, [N, I] as a view.
at::Tensor rows_of(const at::Tensor& images) { return images.flatten(1); }

// Returns all pixels of all images by channel, [I, N * pixels].
at::Tensor channels_of(const at::Tensor& images) { return images.transpose(0, 1).flatten(1); }

}  // namespace

bool has_pointwise_convolution(const at::Tensor& image, const at::Tensor& weight, at::IntArrayRef outputs,
                               at::IntArrayRef padding, int64_t groups) {
  const bool is_product = image.scalar_type() == at::kFloat && groups == 1 && weight.numel() != 0 &&
                          weight.numel() == weight.size(0) * weight.size(1) && image.numel() != 0 &&
                          image.sizes().slice(2) == outputs.slice(2) &&
                          std::all_of(padding.begin(), padding.end(), [](int64_t each) { return each == 0; });
  return is_product && (pixels_of(image) == 1 || pixels_of(image) >= kFewestPixels);
}

void pointwise_convolution_out(at::Tensor& out, const at::Tensor& image, const at::Tensor& weight,
                               const std::optional<at::Tensor>& bias) {
  const at::Tensor matrix = weight.flatten(1);
  if (pixels_of(image) == 1) {
    at::Tensor rows = rows_of(out);
    bias ? at::addmm_out(rows, *bias, rows_of(image), matrix.t()) : at::mm_out(rows, rows_of(image), matrix.t());
    return;
  }
  at::Tensor result = matrices_of(out);
  const at::Tensor weights = matrix.expand({image.size(0), -1, -1});
  bias ? at::baddbmm_out(result, bias->unsqueeze(1).expand_as(result), weights, matrices_of(image))
       : at::bmm_out(result, weights, matrices_of(image));
}

void pointwise_image_gradient_out(at::Tensor& out, const at::Tensor& grad, const at::Tensor& weight) {
  pointwise_convolution_out(out, grad, weight.transpose(0, 1), std::nullopt);
}

at::Tensor pointwise_weight_gradient(const at::Tensor& grad, const at::Tensor& image) {
  const int64_t outputs = grad.size(1), inputs = image.size(1);
  // A product for each image, unless their products are larger than the images; or one of copies in another order.
  const bool are_small = outputs * inputs <= 2 * (outputs + inputs) * pixels_of(image);
  return are_small && image.size(0) > 1 ? at::bmm(matrices_of(grad), matrices_of(image).transpose(1, 2)).sum(0)
                                        : at::mm(channels_of(grad), channels_of(image).t());
}

}  // namespace torch_xla::handlers
