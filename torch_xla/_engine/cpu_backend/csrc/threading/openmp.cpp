#include "threading/openmp.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>
#include <dlfcn.h>

namespace torch_xla::handlers {
namespace {

constexpr int kPauseSoft = 1;  // omp_pause_soft: keeps the user's settings

// The OpenMP 5.0 functions that release_omp_team() needs. A process may load several OpenMP runtimes; this finds
// torch's.
struct Functions {
  Functions() {
    Dl_info torch;
    void* library = dladdr(reinterpret_cast<void*>(&at::get_num_threads), &torch) == 0
                        ? nullptr
                        : dlopen(torch.dli_fname, RTLD_NOLOAD | RTLD_LAZY);
    if (library != nullptr) {  // also finds symbols of the libraries it depends on
      pause = reinterpret_cast<int (*)(int, int)>(dlsym(library, "omp_pause_resource"));
      host = reinterpret_cast<int (*)()>(dlsym(library, "omp_get_initial_device"));
    }
  }

  int (*pause)(int kind, int device) = nullptr;
  int (*host)() = nullptr;
};

}  // namespace

void parallel_for(int64_t count, const std::function<void(int64_t begin, int64_t end)>& work) {
  // Uses ATen's own loop, one element per index, to run on the threads of torch's OpenMP, not of another one.
  const at::Tensor x = at::empty({count}, at::kByte);
  const auto* first = static_cast<const char*>(x.const_data_ptr());
  const auto loop = [&](char** data, const int64_t*, int64_t size) {
    const int64_t begin = data[0] - first;
    work(begin, begin + size);
  };
  at::TensorIteratorConfig().add_output(x).add_const_input(x).build().for_each(loop, 1);
}

void run_on_all_threads(const std::function<void()>& work) {
  parallel_for(at::get_num_threads(), [&](int64_t, int64_t) { work(); });
}

void release_omp_team() {
  static const Functions openmp;
  if (openmp.pause != nullptr && openmp.host != nullptr) {
    openmp.pause(kPauseSoft, openmp.host());
  }
}

}  // namespace torch_xla::handlers
