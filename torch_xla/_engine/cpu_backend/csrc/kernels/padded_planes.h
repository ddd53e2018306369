// The layout in which depthwise_convolution.cpp multiplies a channel of an image with the taps of a kernel.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

namespace torch_xla::handlers {

constexpr int64_t kPlaneLanes = 16, kPlaneBlock = 4 * kPlaneLanes;  // numbers of a vector, and of a pass of a loop

struct Size {
  int64_t height, width;  // 1 for the height of a one-dimensional image
  int64_t area() const { return height * width; }
};

// A padded image is split into phases: of a stride of two, the elements of even and of odd rows and columns. All phases
// have the same row length. Then one distance in memory leads from each output, in rows of that length, to the element
// that a tap multiplies, also over the ends of rows: a loop over an image is one loop.
struct PaddedPlanes {
  // Sizes of tensors [N, C, ...].
  PaddedPlanes(at::IntArrayRef images, at::IntArrayRef outputs, at::IntArrayRef kernel, at::IntArrayRef strides,
               at::IntArrayRef padding, at::IntArrayRef dilations);

  // Copies an image into a buffer of `length` zeros, or back.
  void copy_image(const float* from, float* padded) const;
  void copy_back(const float* padded, float* to) const;
  // Copies outputs into rows of the phases' length, or back.
  void copy_outputs(const float* from, float* rows) const;
  void copy_outputs_back(const float* rows, float* to) const;

  int64_t phase_count() const { return stride.area(); }
  int64_t phase_of(int64_t tap) const { return offsets[tap] / phase.area(); }
  int64_t shift_of(int64_t tap) const { return offsets[tap] % phase.area(); }

  Size image, output, taps, stride, pad, phase;
  std::vector<int64_t> offsets;  // by tap: of the element that it multiplies for the first output
  int64_t count;                 // outputs in rows of a phase, rounded up to kPlaneBlock
  int64_t phase_length;          // elements of a phase, rounded up to kPlaneBlock
  int64_t length;                // of a padded image, with what the loops read after it

 private:
  int64_t position_of(int64_t row, int64_t column) const;

  std::vector<int64_t> starts_;  // by row of the image, and by phase of its columns: of the first element
};

}  // namespace torch_xla::handlers
