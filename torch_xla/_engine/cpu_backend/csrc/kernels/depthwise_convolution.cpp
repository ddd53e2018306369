// Depthwise convolutions as loops over flattened channels (padded_planes.h): out[i] is the sum over taps of
// weight[tap] * image[i + offset of the tap].

#include "kernels/depthwise_convolution.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/multiversion.h"
#include "kernels/padded_planes.h"
#include "threading/openmp.h"

namespace torch_xla::handlers {
namespace {

constexpr int64_t kMostTaps = 7;  // taps whose sums stay in registers
typedef float Lanes __attribute__((vector_size(kPlaneLanes * sizeof(float))));

inline __attribute__((always_inline)) Lanes load(const float* from) {
  Lanes result;
  std::memcpy(&result, from, sizeof(result));
  return result;
}

// to[i] = first + the sum over taps of weights[tap] * from[i + offsets[tap]]; count is a multiple of kPlaneBlock.
TORCH_XLA_MULTIVERSION void add_taps(int64_t count, int64_t taps, const float* weights, const int64_t* offsets,
                                     const float* from, float first, float* to) {
  for (int64_t i = 0; i < count; i += kPlaneBlock) {
    Lanes sums[kPlaneBlock / kPlaneLanes];
#pragma GCC unroll 4
    for (int64_t k = 0; k < kPlaneBlock / kPlaneLanes; ++k) {
      sums[k] = Lanes{} + first;
    }
    for (int64_t tap = 0; tap < taps; ++tap) {
      const float* own = from + i + offsets[tap];
#pragma GCC unroll 4
      for (int64_t k = 0; k < kPlaneBlock / kPlaneLanes; ++k) {
        sums[k] += weights[tap] * load(own + k * kPlaneLanes);
      }
    }
    std::memcpy(to + i, sums, sizeof(sums));
  }
}

template <int64_t taps>
__attribute__((always_inline)) inline void add_products(int64_t count, const float* grad, const float* image,
                                                        const int64_t* offsets, double* sums) {
  Lanes lanes[taps] = {};
  for (int64_t i = 0; i < count; i += kPlaneLanes) {
    const Lanes own = load(grad + i);
#pragma GCC unroll 8
    for (int64_t tap = 0; tap < taps; ++tap) {
      lanes[tap] += own * load(image + i + offsets[tap]);
    }
  }
  for (int64_t tap = 0; tap < taps; ++tap) {
    float sum = 0;
    for (int64_t lane = 0; lane < kPlaneLanes; ++lane) {
      sum += lanes[tap][lane];
    }
    sums[tap] += sum;
  }
}

// sums[tap] += the sum of grad[i] * image[i + offsets[tap]], for up to kMostTaps taps; count is a multiple of kPlaneLanes.
TORCH_XLA_MULTIVERSION void correlate(int64_t taps, int64_t count, const float* grad, const float* image,
                                      const int64_t* offsets, double* sums) {
  switch (taps) {
    case 1:
      return add_products<1>(count, grad, image, offsets, sums);
    case 2:
      return add_products<2>(count, grad, image, offsets, sums);
    case 3:
      return add_products<3>(count, grad, image, offsets, sums);
    case 4:
      return add_products<4>(count, grad, image, offsets, sums);
    case 5:
      return add_products<5>(count, grad, image, offsets, sums);
    case 6:
      return add_products<6>(count, grad, image, offsets, sums);
    default:
      return add_products<kMostTaps>(count, grad, image, offsets, sums);
  }
}

PaddedPlanes planes_of(at::IntArrayRef image, at::IntArrayRef outputs, const at::Tensor& weight,
                       const Geometry& geometry) {
  return {image, outputs, weight.sizes(), geometry.stride, geometry.padding, geometry.dilation};
}

// The taps that multiply elements of one phase.
struct PhaseTaps {
  std::vector<int64_t> taps, offsets;  // from an element of the phase back to the output that the tap adds it to
};

std::vector<PhaseTaps> phase_taps_of(const PaddedPlanes& planes) {
  std::vector<PhaseTaps> result(planes.phase_count());
  for (int64_t tap = 0; tap < planes.taps.area(); ++tap) {
    auto& phase = result[planes.phase_of(tap)];
    phase.taps.push_back(tap);
    phase.offsets.push_back(-planes.shift_of(tap));
  }
  return result;
}

}  // namespace

bool has_depthwise_convolution(const at::Tensor& image, const at::Tensor& weight, int64_t groups) {
  if (image.scalar_type() != at::kFloat || image.dim() > 4 || groups != image.size(1) || groups != weight.size(0) ||
      weight.size(1) != 1 || image.numel() == 0) {
    return false;
  }
  const float* weights = weight.const_data_ptr<float>();
  return weight.is_contiguous() &&
         std::all_of(weights, weights + weight.numel(), [](float each) { return std::isfinite(each); });
}

void depthwise_convolution_out(at::Tensor& out, const at::Tensor& given_image, const at::Tensor& weight,
                               const std::optional<at::Tensor>& bias, const Geometry& geometry) {
  const at::Tensor image = given_image.contiguous();
  const PaddedPlanes planes = planes_of(image.sizes(), out.sizes(), weight, geometry);
  const int64_t channels = image.size(1), taps = planes.taps.area();
  parallel_for(image.size(0) * channels, [&](int64_t begin, int64_t end) {
    std::vector<float> padded(planes.length), rows(planes.count);
    for (int64_t at = begin; at < end; ++at) {
      planes.copy_image(image.const_data_ptr<float>() + at * planes.image.area(), padded.data());
      add_taps(planes.count, taps, weight.const_data_ptr<float>() + at % channels * taps, planes.offsets.data(),
               padded.data(), bias ? bias->const_data_ptr<float>()[at % channels] : 0, rows.data());
      planes.copy_outputs_back(rows.data(), out.data_ptr<float>() + at * planes.output.area());
    }
  });
}

void depthwise_image_gradient_out(at::Tensor& out, const at::Tensor& given_grad, const at::Tensor& weight,
                                  const Geometry& geometry) {
  const at::Tensor grad = given_grad.contiguous();
  const PaddedPlanes planes = planes_of(out.sizes(), grad.sizes(), weight, geometry);
  const auto phases = phase_taps_of(planes);
  const int64_t channels = out.size(1), taps = planes.taps.area(), before = planes.phase.area();
  parallel_for(out.size(0) * channels, [&](int64_t begin, int64_t end) {
    // Zeros before and after the gradient stand for outputs that do not exist.
    std::vector<float> grads(before + std::max(planes.phase_length, planes.count)), weights(taps);
    std::vector<float> padded(planes.phase_count() * planes.phase.area() + kPlaneBlock);
    for (int64_t at = begin; at < end; ++at) {
      planes.copy_outputs(grad.const_data_ptr<float>() + at * planes.output.area(), grads.data() + before);
      for (size_t i = 0; i < phases.size(); ++i) {
        const auto& phase = phases[i];
        std::transform(phase.taps.begin(), phase.taps.end(), weights.begin(),
                       [&](int64_t tap) { return weight.const_data_ptr<float>()[at % channels * taps + tap]; });
        // A phase ends with what the next one overwrites.
        add_taps(planes.phase_length, phase.taps.size(), weights.data(), phase.offsets.data(), grads.data() + before, 0,
                 padded.data() + i * planes.phase.area());
      }
      planes.copy_back(padded.data(), out.data_ptr<float>() + at * planes.image.area());
    }
  });
}

at::Tensor depthwise_weight_gradient(const at::Tensor& given_grad, const at::Tensor& given_image,
                                     const at::Tensor& weight, const Geometry& geometry) {
  const at::Tensor grad = given_grad.contiguous(), image = given_image.contiguous();
  at::Tensor result = at::empty(weight.sizes(), weight.options());
  const PaddedPlanes planes = planes_of(image.sizes(), grad.sizes(), weight, geometry);
  const int64_t channels = image.size(1), taps = planes.taps.area(), groups = (taps + kMostTaps - 1) / kMostTaps;
  parallel_for(channels, [&](int64_t begin, int64_t end) {
    // Elements beside the image stay zero: each copy writes the same ones.
    std::vector<float> grads(planes.count), padded(planes.length);
    for (int64_t channel = begin; channel < end; ++channel) {
      std::vector<double> sums(taps);
      for (int64_t n = 0; n < image.size(0); ++n) {
        const int64_t at = n * channels + channel;
        planes.copy_outputs(grad.const_data_ptr<float>() + at * planes.output.area(), grads.data());
        planes.copy_image(image.const_data_ptr<float>() + at * planes.image.area(), padded.data());
        for (int64_t i = 0; i < groups; ++i) {
          const int64_t first = i * taps / groups, last = (i + 1) * taps / groups;
          correlate(last - first, planes.count, grads.data(), padded.data(), &planes.offsets[first], &sums[first]);
        }
      }
      std::copy(sums.begin(), sums.end(), result.data_ptr<float>() + channel * taps);
    }
  });
  return result;
}

}  // namespace torch_xla::handlers
