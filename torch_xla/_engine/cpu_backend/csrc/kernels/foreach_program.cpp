// Elementwise operations on lists of float32 arrays, as optimizers make them: a short program, run for each element.
//
// XLA makes a kernel, or several, of each parameter, and goes through memory for each. Here a block of one array at a
// time goes through the whole program in the cache, and what is in between never leaves it.
//
// Operands: `lists` lists of as many arrays each, then the numbers. Results: lists of as many, those of the registers
// `results`. Registers are numbered: the operands' lists first, then what instructions make. A result may have the
// memory of an operand of the same place.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "ffi_handler.h"
#include "kernels/multiversion.h"
#include "threading/kernel_thread.h"
#include "threading/openmp.h"

namespace torch_xla::handlers {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kBlock = 1024;           // elements: all registers of a block fit into the first cache
constexpr int64_t kFewForATeam = 1 << 22;  // elements times instructions, which a thread has done before others wake up

// As in compilation/foreach_fusion.py. `s` is a number, `a`, `b` and `c` are elements.
enum OpCode : int64_t {
  kAdd,          // a + s * b
  kSubtract,     // a - s * b
  kAddNumber,    // a + s
  kTakeNumber,   // a - s
  kMultiply,     // a * b
  kScale,        // a * s
  kDivide,       // a / b
  kDivideBy,     // a / s
  kAddProduct,   // a + s * b * c
  kAddQuotient,  // a + s * (b / c)
  kLerp,         // between a and b
  kLarger,       // nan where one is
  kSmaller,
  kRoot,
  kNegative,
  kAbsolute,
};

constexpr int64_t kWords = 6;  // of a step: code, register, a, b, c, s

TORCH_XLA_MULTIVERSION void run(int64_t code, int64_t n, float* to, const float* a, const float* b, const float* c,
                                float s) {
#define EACH(VALUE)                                                       \
  _Pragma("GCC ivdep") for (int64_t i = 0; i < n; ++i) { to[i] = VALUE; } \
  break;
  switch (code) {
    case kAdd:
      EACH(a[i] + s * b[i])
    case kSubtract:
      EACH(a[i] - s * b[i])
    case kAddNumber:
      EACH(a[i] + s)
    case kTakeNumber:
      EACH(a[i] - s)
    case kMultiply:
      EACH(a[i] * b[i])
    case kScale:
      EACH(a[i] * s)
    case kDivide:
      EACH(a[i] / b[i])
    case kDivideBy:
      EACH(a[i] / s)
    case kAddProduct:
      EACH(a[i] + s * b[i] * c[i])
    case kAddQuotient:
      EACH(a[i] + s * (b[i] / c[i]))
    case kLerp: {
      if (std::abs(s) < 0.5f) {
        EACH(a[i] + s * (b[i] - a[i]))
      }
      const float back = s - 1;
      EACH(b[i] + back * (b[i] - a[i]))
    }
    case kLarger:
      EACH(a[i] > b[i] || a[i] != a[i] ? a[i] : b[i])
    case kSmaller:
      EACH(a[i] < b[i] || a[i] != a[i] ? a[i] : b[i])
    case kRoot:
      EACH(__builtin_sqrtf(a[i]))
    case kNegative:
      EACH(-a[i])
    case kAbsolute:
      EACH(__builtin_fabsf(a[i]))
  }
#undef EACH
}

float number(ffi::AnyBuffer buffer) {
  switch (buffer.element_type()) {
    case ffi::DataType::F64:
      return static_cast<float>(*static_cast<const double*>(buffer.untyped_data()));
    case ffi::DataType::F32:
      return *static_cast<const float*>(buffer.untyped_data());
    default:
      return static_cast<float>(*static_cast<const int64_t*>(buffer.untyped_data()));
  }
}

// One call.
class ForeachProgram {
 public:
  ForeachProgram(const ffi::RemainingArgs& operands, const ffi::RemainingRets& results, const Attributes& attributes)
      : code_(attributes.integers("code")), made_(attributes.integers("results")), lists_(attributes.integer("lists")) {
    count_ = static_cast<int64_t>(results.size() / made_.size());
    registers_ = lists_ + steps();
    for (size_t i = 0; i < operands.size(); ++i) {
      const auto buffer = *operands.get<ffi::AnyBuffer>(i);
      if (i < static_cast<size_t>(count_)) {
        sizes_.push_back(static_cast<int64_t>(buffer.element_count()));
      }
      if (i < static_cast<size_t>(lists_ * count_)) {
        operands_.push_back(static_cast<float*>(buffer.untyped_data()));
      } else {
        numbers_.push_back(number(buffer));
      }
    }
    for (size_t i = 0; i < results.size(); ++i) {
      results_.push_back(static_cast<float*>((*results.get<ffi::AnyBuffer>(i))->untyped_data()));
    }
  }

  void run_all() const {
    std::vector<Block> blocks;
    int64_t elements = 0;
    for (int64_t place = 0; place < count_; ++place) {
      elements += sizes_[place];
      for (int64_t first = 0; first < sizes_[place]; first += kBlock) {
        blocks.push_back({place, first, std::min(kBlock, sizes_[place] - first)});
      }
    }
    const auto some = [&](int64_t begin, int64_t end) {
      std::vector<float> scratch(steps() * kBlock);
      std::vector<float*> at(registers_);
      for (int64_t i = begin; i < end; ++i) {
        run_block(blocks[i], scratch.data(), at);
      }
    };
    const auto count = static_cast<int64_t>(blocks.size());
    if (elements * steps() < kFewForATeam) {
      some(0, count);
    } else {
      run_on_kernel_thread([&] { parallel_for(count, some); });
    }
  }

 private:
  struct Block {
    int64_t place, first, size;
  };

  int64_t steps() const { return static_cast<int64_t>(code_.size()) / kWords; }

  void run_block(const Block& block, float* scratch, std::vector<float*>& at) const {
    for (int64_t i = 0; i < registers_; ++i) {
      at[i] = i < lists_ ? operands_[i * count_ + block.place] + block.first : scratch + (i - lists_) * kBlock;
    }
    for (size_t i = 0; i < made_.size(); ++i) {
      float* result = results_[i * count_ + block.place] + block.first;
      if (!is_read_after(made_[i], result, at)) {
        at[made_[i]] = result;
      }
    }
    const auto read = [&](int64_t from) { return from < 0 ? nullptr : at[from]; };
    for (int64_t i = 0; i < steps(); ++i) {
      const int64_t* word = &code_[i * kWords];
      run(word[0], block.size, at[word[1]], read(word[2]), read(word[3]), read(word[4]),
          word[5] < 0 ? 1.0f : numbers_[word[5]]);
    }
    for (size_t i = 0; i < made_.size(); ++i) {
      float* result = results_[i * count_ + block.place] + block.first;
      if (at[made_[i]] != result) {
        std::memcpy(result, at[made_[i]], block.size * sizeof(float));
      }
    }
  }

  // Whether a result has the memory of an operand that is needed when the result is there.
  bool is_read_after(int64_t made, const float* result, const std::vector<float*>& at) const {
    for (int64_t i = made - lists_ + 1; i < steps(); ++i) {
      for (int64_t j = 2; j < 5; ++j) {
        const int64_t from = code_[i * kWords + j];
        if (from >= 0 && from < lists_ && at[from] == result) {
          return true;
        }
      }
    }
    return false;
  }

  at::IntArrayRef code_;  // of each step: what, the register it makes, those it reads, or -1, and its number, or -1
  at::IntArrayRef made_;  // the registers of the results
  int64_t lists_, count_, registers_;
  std::vector<int64_t> sizes_;
  std::vector<float*> operands_;
  std::vector<float> numbers_;
  std::vector<float*> results_;
};

ffi::Error lists(ffi::RemainingArgs operands, ffi::RemainingRets results, ffi::Dictionary dictionary) {
  return catch_errors("operations on lists",
                      [&] { ForeachProgram(operands, results, Attributes(dictionary)).run_all(); });
}

}  // namespace
}  // namespace torch_xla::handlers

TORCH_XLA_HANDLER_OF(lists, torch_xla::handlers::lists)
