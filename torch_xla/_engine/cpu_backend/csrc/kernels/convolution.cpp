// Convolutions and their gradients, by oneDNN where torch selects it.
//
// If all taps of a kernel but one touch only padding, as eight of nine do for a 3x3 kernel on a 1x1 image, only that
// tap is used: in the last layers of a network for small images most multiplications are by zero.
// pointwise_convolution.cpp multiplies matrices for kernels of one tap, and depthwise_convolution.cpp computes
// convolutions with one kernel for each channel.

#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/copy.h>

#include <array>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "ffi_handler.h"
#include "kernels/depthwise_convolution.h"
#include "kernels/pointwise_convolution.h"

namespace torch_xla::handlers {
namespace {

// The position of a kernel over an image along one dimension.
struct Dimension {
  int64_t image, outputs, taps, stride, padding, dilation;

  bool touches(int64_t tap) const {
    const int64_t start = tap * dilation - padding;  // image position of the tap for the first output
    const int64_t output = start < 0 ? (-start + stride - 1) / stride : 0;
    return output < outputs && start + output * stride < image;
  }

  // Returns the padding with which a kernel of this tap alone is equivalent, if equal padding on both sides is.
  std::optional<int64_t> padding_of(int64_t tap) const {
    const int64_t found = padding - tap * dilation;
    const bool is_valid = found >= 0 && (image + 2 * found - 1) / stride + 1 == outputs;
    return is_valid ? std::optional(found) : std::nullopt;
  }

  // Returns the only tap that touches the image, and its padding; nullopt if several do.
  std::optional<std::pair<int64_t, int64_t>> single_tap() const {
    std::optional<int64_t> tap;
    for (int64_t i = 0; i < taps; ++i) {
      if (touches(i)) {
        if (tap) {
          return std::nullopt;
        }
        tap = i;
      }
    }
    const auto padding = tap ? padding_of(*tap) : std::nullopt;
    return padding ? std::optional(std::pair(*tap, *padding)) : std::nullopt;
  }
};

// The taps of a kernel that are used: all, or the only one that touches the image. (For some of several taps, ATen's
// kernels are slower than for all.)
class UsedTaps {
 public:
  UsedTaps(const at::Tensor& image, const at::Tensor& weight, at::IntArrayRef outputs, const Attributes& a)
      : padding_(a.integers("padding").vec()) {
    if (a.flag("transposed")) {
      return;
    }
    const auto stride = a.integers("stride"), dilation = a.integers("dilation");
    std::vector<int64_t> taps, padding;
    for (size_t i = 0; i < padding_.size(); ++i) {
      const size_t at = i + 2;
      const auto found =
          Dimension{image.size(at), outputs[at], weight.size(at), stride[i], padding_[i], dilation[i]}.single_tap();
      if (!found) {
        return;
      }
      taps.push_back(found->first);
      padding.push_back(found->second);
    }
    taps_ = taps;
    padding_ = padding;
  }

  // Returns the used taps of a tensor of the kernel's shape.
  at::Tensor slice(at::Tensor weight) const {
    for (size_t i = 0; i < taps_.size(); ++i) {
      weight = weight.narrow(static_cast<int64_t>(i) + 2, taps_[i], 1);
    }
    return weight;
  }

  bool is_all() const { return taps_.empty(); }
  at::IntArrayRef padding() const { return padding_; }

 private:
  std::vector<int64_t> taps_;  // by dimension; empty if all are used
  std::vector<int64_t> padding_;
};

Geometry geometry_of(const Attributes& a) {
  return {a.integers("stride"), a.integers("padding"), a.integers("dilation")};
}

bool is_pointwise(const at::Tensor& image, const at::Tensor& weight, at::IntArrayRef outputs, const UsedTaps& used,
                  const Attributes& a) {
  return !a.flag("transposed") &&
         has_pointwise_convolution(image, used.slice(weight), outputs, used.padding(), a.integer("groups"));
}

bool is_depthwise(const at::Tensor& image, const at::Tensor& weight, const UsedTaps& used, const Attributes& a) {
  return !a.flag("transposed") && used.is_all() && has_depthwise_convolution(image, weight, a.integer("groups"));
}

void convolution(const Tensors& in, Tensors& out, const Attributes& a) {
  const auto bias = in.size() > 2 ? std::optional(in[2]) : std::nullopt;
  const UsedTaps used(in[0], in[1], out[0].sizes(), a);
  if (is_pointwise(in[0], in[1], out[0].sizes(), used, a)) {
    pointwise_convolution_out(out[0], in[0], used.slice(in[1]), bias);
  } else if (is_depthwise(in[0], in[1], used, a)) {
    depthwise_convolution_out(out[0], in[0], in[1], bias, geometry_of(a));
  } else {
    out[0].copy_(at::convolution(in[0], used.slice(in[1]), bias, a.integers("stride"), used.padding(),
                                 a.integers("dilation"), a.flag("transposed"), a.integers("output_padding"),
                                 a.integer("groups")));
  }
}

// Gradients of the image, the weight and the bias; undefined if not wanted, or if they are in their output already.
using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Outputs = std::vector<at::Tensor*>;  // null if not wanted

Gradients aten_gradients(const Tensors& in, const UsedTaps& used, const Attributes& a, std::array<bool, 3> mask) {
  const int64_t channels = in[0].size(1);
  return at::convolution_backward(in[0], in[1], used.slice(in[2]), at::IntArrayRef(channels), a.integers("stride"),
                                  used.padding(), a.integers("dilation"), a.flag("transposed"),
                                  a.integers("output_padding"), a.integer("groups"), mask);
}

at::Tensor bias_gradient(const Tensors& in, const Outputs& outputs) {
  return outputs[2] == nullptr ? at::Tensor() : in[0].flatten(2).sum({0, 2});
}

Gradients pointwise_gradients(const Tensors& in, const UsedTaps& used, const Outputs& outputs) {
  const at::Tensor weight = used.slice(in[2]);
  if (outputs[0] != nullptr) {
    pointwise_image_gradient_out(*outputs[0], in[0], weight);
  }
  const at::Tensor weight_grad =
      outputs[1] == nullptr ? at::Tensor() : pointwise_weight_gradient(in[0], in[1]).view(weight.sizes());
  return {at::Tensor(), weight_grad, bias_gradient(in, outputs)};
}

Gradients depthwise_gradients(const Tensors& in, const UsedTaps& used, const Attributes& a, const Outputs& outputs) {
  if (outputs[0] != nullptr) {
    depthwise_image_gradient_out(*outputs[0], in[0], in[2], geometry_of(a));
  }
  at::Tensor weight_grad =
      outputs[1] == nullptr ? at::Tensor() : depthwise_weight_gradient(in[0], in[1], in[2], geometry_of(a));
  if (weight_grad.defined() && !weight_grad.isfinite().all().item<bool>()) {
    weight_grad = std::get<1>(aten_gradients(in, used, a, {false, true, false}));
  }
  return {at::Tensor(), weight_grad, bias_gradient(in, outputs)};
}

Gradients gradients_of(const Tensors& in, const UsedTaps& used, const Attributes& a, const Outputs& outputs) {
  if (is_pointwise(in[1], in[2], in[0].sizes(), used, a)) {
    return pointwise_gradients(in, used, outputs);
  }
  return is_depthwise(in[1], in[2], used, a) ? depthwise_gradients(in, used, a, outputs)
                                             : aten_gradients(in, used, a, flags(a.integers("mask")));
}

void convolution_backward(const Tensors& in, Tensors& out, const Attributes& a) {
  const UsedTaps used(in[1], in[2], in[0].sizes(), a);
  const Outputs outputs = masked(out, a.integers("mask"));
  const auto [image, weight, bias] = gradients_of(in, used, a, outputs);
  if (image.defined()) {
    outputs[0]->copy_(image);
  }
  if (weight.defined()) {
    if (!used.is_all()) {
      outputs[1]->zero_();
    }
    used.slice(*outputs[1]).copy_(weight);
  }
  if (bias.defined()) {
    outputs[2]->copy_(bias);
  }
}

}  // namespace
}  // namespace torch_xla::handlers

TORCH_XLA_HANDLER(convolution, torch_xla::handlers::convolution)
TORCH_XLA_HANDLER(convolution_backward, torch_xla::handlers::convolution_backward)
