// Foreach programs: elementwise operations on lists of float32 arrays, as in optimizers, run as a short program per
// block.
//
// XLA would make one kernel or more per parameter, each of which reads and writes memory. Here a block of one array at
// a time runs through the whole program in the cache, and intermediate values stay there.
//
// Operands: `lists` lists of equal length, then the numbers. Results: one list for each register in `results`.
// Registers are numbered: first the operands' lists, then the results of instructions. A result may alias an operand at
// the same list position.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "ffi_handler.h"
#include "kernels/multiversion.h"
#include "threading/xla_pool.h"

namespace torch_xla::handlers {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kBlock = 1024;               // elements: all registers of a block fit into the L1 cache
constexpr int64_t kMinParallelWork = 1 << 20;  // elements times instructions, below which waking a thread takes longer

// The opcodes: name and value of element i, where s is a number and a, b and c are lists. This is the only table:
// compilation/foreach_fusion.py maps operators to the names, and torch_xla_foreach_opcodes() exports their order.
// lerp, maximum and minimum are as in ATen: lerp starts from the nearer end, the others return nan if an operand is nan.
#define TORCH_XLA_FOREACH_OPCODES(OP)                                                      \
  OP(add_scaled, a[i] + s * b[i])                                                          \
  OP(sub_scaled, a[i] - s * b[i])                                                          \
  OP(add_number, a[i] + s)                                                                 \
  OP(sub_number, a[i] - s)                                                                 \
  OP(mul, a[i] * b[i])                                                                     \
  OP(mul_number, a[i] * s)                                                                 \
  OP(div, a[i] / b[i])                                                                     \
  OP(div_number, a[i] / s)                                                                 \
  OP(addcmul, a[i] + s * b[i] * c[i])                                                      \
  OP(addcdiv, a[i] + s * (b[i] / c[i]))                                                    \
  OP(lerp, std::abs(s) < 0.5f ? a[i] + s * (b[i] - a[i]) : b[i] + (s - 1) * (b[i] - a[i])) \
  OP(maximum, a[i] > b[i] || a[i] != a[i] ? a[i] : b[i])                                   \
  OP(minimum, a[i] < b[i] || a[i] != a[i] ? a[i] : b[i])                                   \
  OP(sqrt, __builtin_sqrtf(a[i]))                                                          \
  OP(neg, -a[i])                                                                           \
  OP(abs, __builtin_fabsf(a[i]))

enum class OpCode : int64_t {
#define NAME(OP, VALUE) k_##OP,
  TORCH_XLA_FOREACH_OPCODES(NAME)
#undef NAME
};

constexpr int64_t kWords = 6;  // per instruction: opcode, register, a, b, c, s

TORCH_XLA_MULTIVERSION void run(OpCode code, int64_t n, float* to, const float* a, const float* b, const float* c,
                                float s) {
  switch (code) {
#define CASE(OP, VALUE)                                                     \
  case OpCode::k_##OP: {                                                    \
    _Pragma("GCC ivdep") for (int64_t i = 0; i < n; ++i) { to[i] = VALUE; } \
    break;                                                                  \
  }
    TORCH_XLA_FOREACH_OPCODES(CASE)
#undef CASE
  }
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

// One call of the kernel.
class ForeachProgram {
 public:
  ForeachProgram(const ffi::RemainingArgs& operands, const ffi::RemainingRets& results, const Attributes& attributes)
      : code_(attributes.integers("code")),
        result_registers_(attributes.integers("results")),
        lists_(attributes.integer("lists")) {
    count_ = static_cast<int64_t>(results.size() / result_registers_.size());
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

  void run_all(ffi::ThreadPool& pool) const {
    std::vector<Block> blocks;
    int64_t elements = 0;
    for (int64_t position = 0; position < count_; ++position) {
      elements += sizes_[position];
      for (int64_t first = 0; first < sizes_[position]; first += kBlock) {
        blocks.push_back({position, first, std::min(kBlock, sizes_[position] - first)});
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
    if (elements * steps() < kMinParallelWork) {
      some(0, count);
    } else {
      parallel_for_on_pool(pool, count, some);
    }
  }

 private:
  struct Block {
    int64_t position, first, size;
  };

  int64_t steps() const { return static_cast<int64_t>(code_.size()) / kWords; }

  void run_block(const Block& block, float* scratch, std::vector<float*>& at) const {
    for (int64_t i = 0; i < registers_; ++i) {
      at[i] = i < lists_ ? operands_[i * count_ + block.position] + block.first : scratch + (i - lists_) * kBlock;
    }
    for (size_t i = 0; i < result_registers_.size(); ++i) {
      float* result = results_[i * count_ + block.position] + block.first;
      if (!is_read_after(result_registers_[i], result, at)) {
        at[result_registers_[i]] = result;
      }
    }
    const auto read = [&](int64_t from) { return from < 0 ? nullptr : at[from]; };
    for (int64_t i = 0; i < steps(); ++i) {
      const int64_t* word = &code_[i * kWords];
      run(static_cast<OpCode>(word[0]), block.size, at[word[1]], read(word[2]), read(word[3]), read(word[4]),
          word[5] < 0 ? 1.0f : numbers_[word[5]]);
    }
    for (size_t i = 0; i < result_registers_.size(); ++i) {
      float* result = results_[i * count_ + block.position] + block.first;
      if (at[result_registers_[i]] != result) {
        std::memcpy(result, at[result_registers_[i]], block.size * sizeof(float));
      }
    }
  }

  // Returns whether a result aliases an operand that is read after the result is computed.
  bool is_read_after(int64_t result_register, const float* result, const std::vector<float*>& at) const {
    for (int64_t i = result_register - lists_ + 1; i < steps(); ++i) {
      for (int64_t j = 2; j < 5; ++j) {
        const int64_t from = code_[i * kWords + j];
        if (from >= 0 && from < lists_ && at[from] == result) {
          return true;
        }
      }
    }
    return false;
  }

  at::IntArrayRef code_;  // per instruction: opcode, its register, those it reads or -1, index of its number or -1
  at::IntArrayRef result_registers_;  // the registers of the results
  int64_t lists_, count_, registers_;
  std::vector<int64_t> sizes_;
  std::vector<float*> operands_;
  std::vector<float> numbers_;
  std::vector<float*> results_;
};

ffi::Error lists(ffi::ThreadPool pool, ffi::RemainingArgs operands, ffi::RemainingRets results,
                 ffi::Dictionary dictionary) {
  return catch_errors("operations on lists",
                      [&] { ForeachProgram(operands, results, Attributes(dictionary)).run_all(pool); });
}

}  // namespace
}  // namespace torch_xla::handlers

// Returns the names of the opcodes in their order, each followed by a comma.
extern "C" __attribute__((visibility("default"))) const char* torch_xla_foreach_opcodes() {
#define NAME(OP, VALUE) #OP ","
  return TORCH_XLA_FOREACH_OPCODES(NAME);
#undef NAME
}

TORCH_XLA_HANDLER_OF(lists, torch_xla::handlers::lists)
