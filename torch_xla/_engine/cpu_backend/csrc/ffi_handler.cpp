#include "ffi_handler.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <new>
#include <string>

#include "threading/kernel_thread.h"

namespace torch_xla::handlers {
namespace {

namespace ffi = xla::ffi;

at::ScalarType dtype_of(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::PRED:
      return at::kBool;
    case ffi::DataType::S8:
      return at::kChar;
    case ffi::DataType::S16:
      return at::kShort;
    case ffi::DataType::S32:
      return at::kInt;
    case ffi::DataType::S64:
      return at::kLong;
    case ffi::DataType::U8:
      return at::kByte;
    case ffi::DataType::F16:
      return at::kHalf;
    case ffi::DataType::BF16:
      return at::kBFloat16;
    case ffi::DataType::F32:
      return at::kFloat;
    case ffi::DataType::F64:
      return at::kDouble;
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "no CPU kernel supports buffers of XLA dtype ", static_cast<int>(type));
  }
}

at::Tensor tensor(ffi::AnyBuffer buffer) {
  const auto sizes = buffer.dimensions();
  return at::from_blob(buffer.untyped_data(), at::IntArrayRef(sizes.begin(), sizes.size()),
                       at::TensorOptions(dtype_of(buffer.element_type())));
}

template <typename T>
T value(ffi::ErrorOr<T> found) {
  TORCH_CHECK(found.has_value(), found.error().message());
  return *found;
}

// Returns an operand as the op takes it: XLA passes the value before its last transpose (see cpu_kernel_call.py).
at::Tensor operand(const ffi::RemainingArgs& operands, size_t i, const Attributes& attributes) {
  const at::Tensor x = tensor(value(operands.get<ffi::AnyBuffer>(i)));
  const std::string name = "permuted" + std::to_string(i);
  return attributes.has(name.c_str()) ? x.permute(attributes.integers(name.c_str())) : x;
}

void call_kernel(Kernel kernel, const ffi::RemainingArgs& operands, const ffi::RemainingRets& results,
                 const Attributes& attributes) {
  Tensors in, out;
  for (size_t i = 0; i < operands.size(); ++i) {
    in.push_back(operand(operands, i, attributes));
  }
  for (size_t i = 0; i < results.size(); ++i) {
    out.push_back(tensor(*value(results.get<ffi::AnyBuffer>(i))));
  }
  kernel(in, out, attributes);
}

}  // namespace

bool Attributes::flag(const char* name) const { return value(dictionary_.get<bool>(name)); }

int64_t Attributes::integer(const char* name) const { return value(dictionary_.get<int64_t>(name)); }

double Attributes::real(const char* name) const { return value(dictionary_.get<double>(name)); }

at::IntArrayRef Attributes::integers(const char* name) const {
  const auto found = value(dictionary_.get<ffi::Span<const int64_t>>(name));
  return at::IntArrayRef(found.begin(), found.size());
}

ffi::Error catch_errors(const std::string& what, const std::function<void()>& work) {
  const auto failed = [&](ffi::ErrorCode code, const std::string& message) {
    return ffi::Error(code, what + " on the CPU: " + message);
  };
  try {
    work();
    return ffi::Error::Success();
  } catch (const c10::NotImplementedError& error) {
    return failed(ffi::ErrorCode::kUnimplemented, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    const bool out_of_memory =
        message.find("can't allocate memory") != std::string::npos;  // message of torch's allocator
    return failed(out_of_memory ? ffi::ErrorCode::kResourceExhausted : ffi::ErrorCode::kInternal, message);
  } catch (const std::bad_alloc&) {
    return failed(ffi::ErrorCode::kResourceExhausted, "out of memory");
  } catch (const std::exception& error) {
    return failed(ffi::ErrorCode::kInternal, error.what());
  }
}

Handler aten_handler(const char* op, Kernel kernel) {
  return [op, kernel](ffi::ThreadPool, const ffi::RemainingArgs& operands, const ffi::RemainingRets& results,
                      ffi::Dictionary dictionary) {
    return catch_errors("aten::" + std::string(op), [&] {
      const Attributes attributes(dictionary);
      run_on_kernel_thread([&] { call_kernel(kernel, operands, results, attributes); });
    });
  };
}

std::array<bool, 3> flags(at::IntArrayRef mask) { return {mask[0] != 0, mask[1] != 0, mask[2] != 0}; }

std::vector<at::Tensor*> masked(Tensors& results, at::IntArrayRef mask) {
  std::vector<at::Tensor*> found;
  size_t next = 0;
  for (const int64_t is_requested : mask) {
    found.push_back(is_requested != 0 ? &results.at(next++) : nullptr);
  }
  return found;
}

}  // namespace torch_xla::handlers
