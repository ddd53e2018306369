// Convolutions and their gradients: oneDNN's, where torch chooses it.
//
// Where all taps of a kernel but one only ever touch padding, as eight of nine do where it is 3x3 and the image 1x1,
// that one is used: in the last layers of a network for small images most products are with zeros.

#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/copy.h>

#include <optional>
#include <utility>
#include <vector>

#include "ffi_handler.h"

namespace torch_xla::handlers {
namespace {

// How one dimension of a kernel lies over one of an image.
struct Dimension {
  int64_t image, outputs, taps, stride, padding, dilation;

  bool touches(int64_t tap) const {
    const int64_t start = tap * dilation - padding;  // where the first output has it
    const int64_t output = start < 0 ? (-start + stride - 1) / stride : 0;
    return output < outputs && start + output * stride < image;
  }

  // The padding with which a kernel of this tap alone gives the same, if the same on both sides does.
  std::optional<int64_t> padding_of(int64_t tap) const {
    const int64_t found = padding - tap * dilation;
    const bool fits = found >= 0 && (image + 2 * found - 1) / stride + 1 == outputs;
    return fits ? std::optional(found) : std::nullopt;
  }

  // The tap that alone touches the image, and its padding.
  std::optional<std::pair<int64_t, int64_t>> only() const {
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

// What of a kernel is used: all of it, or the only tap that touches the image. (With some taps of several ATen's
// kernels are slower than with all.)
class Part {
 public:
  Part(const at::Tensor& image, const at::Tensor& weight, at::IntArrayRef outputs, const Attributes& a)
      : padding_(a.integers("padding").vec()) {
    if (a.flag("transposed")) {
      return;
    }
    const auto stride = a.integers("stride"), dilation = a.integers("dilation");
    std::vector<int64_t> taps, padding;
    for (size_t i = 0; i < padding_.size(); ++i) {
      const size_t at = i + 2;
      const auto found =
          Dimension{image.size(at), outputs[at], weight.size(at), stride[i], padding_[i], dilation[i]}.only();
      if (!found) {
        return;
      }
      taps.push_back(found->first);
      padding.push_back(found->second);
    }
    taps_ = taps;
    padding_ = padding;
  }

  // It, of a tensor of the kernel's shape.
  at::Tensor of(at::Tensor weight) const {
    for (size_t i = 0; i < taps_.size(); ++i) {
      weight = weight.narrow(static_cast<int64_t>(i) + 2, taps_[i], 1);
    }
    return weight;
  }

  bool is_all() const { return taps_.empty(); }
  at::IntArrayRef padding() const { return padding_; }

 private:
  std::vector<int64_t> taps_;  // by dimension; none where all are used
  std::vector<int64_t> padding_;
};

void convolution(const Tensors& in, Tensors& out, const Attributes& a) {
  const auto bias = in.size() > 2 ? std::optional(in[2]) : std::nullopt;
  const Part part(in[0], in[1], out[0].sizes(), a);
  out[0].copy_(at::convolution(in[0], part.of(in[1]), bias, a.integers("stride"), part.padding(),
                               a.integers("dilation"), a.flag("transposed"), a.integers("output_padding"),
                               a.integer("groups")));
}

void convolution_backward(const Tensors& in, Tensors& out, const Attributes& a) {
  const auto mask = a.integers("mask");
  const int64_t channels = in[0].size(1);
  const Part part(in[1], in[2], in[0].sizes(), a);
  const auto made = at::convolution_backward(
      in[0], in[1], part.of(in[2]), at::IntArrayRef(channels), a.integers("stride"), part.padding(),
      a.integers("dilation"), a.flag("transposed"), a.integers("output_padding"), a.integer("groups"), flags(mask));
  const auto wanted = masked(out, mask);
  if (wanted[0] != nullptr) {
    wanted[0]->copy_(std::get<0>(made));
  }
  if (wanted[1] != nullptr) {
    if (!part.is_all()) {
      wanted[1]->zero_();
    }
    part.of(*wanted[1]).copy_(std::get<1>(made));
  }
  if (wanted[2] != nullptr) {
    wanted[2]->copy_(std::get<2>(made));
  }
}

}  // namespace
}  // namespace torch_xla::handlers

TORCH_XLA_HANDLER(convolution, torch_xla::handlers::convolution)
TORCH_XLA_HANDLER(convolution_backward, torch_xla::handlers::convolution_backward)
