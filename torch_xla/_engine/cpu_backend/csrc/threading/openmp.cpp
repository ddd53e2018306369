#include "threading/openmp.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <system_error>
#include <thread>

namespace torch_xla::handlers {
namespace {

constexpr int kPauseSoft = 1;  // omp_pause_soft: keeps the user's settings

// The functions of OpenMP that this file needs; the first two are of OpenMP 5.0. A process may load several OpenMP
// runtimes; this finds torch's.
struct Functions {
  Functions() {
    Dl_info torch;
    void* library = dladdr(reinterpret_cast<void*>(&at::get_num_threads), &torch) == 0
                        ? nullptr
                        : dlopen(torch.dli_fname, RTLD_NOLOAD | RTLD_LAZY);
    if (library != nullptr) {  // also finds symbols of the libraries it depends on
      pause = reinterpret_cast<int (*)(int, int)>(dlsym(library, "omp_pause_resource"));
      host = reinterpret_cast<int (*)()>(dlsym(library, "omp_get_initial_device"));
      count_cores = reinterpret_cast<int (*)()>(dlsym(library, "omp_get_num_procs"));
      set_threads = reinterpret_cast<void (*)(int)>(dlsym(library, "omp_set_num_threads"));
      is_gnu = set_threads != nullptr && dlsym(library, "kmp_set_blocktime") == nullptr;  // a function of LLVM's
    }
  }

  int (*pause)(int kind, int device) = nullptr;
  int (*host)() = nullptr;
  int (*count_cores)() = nullptr;
  void (*set_threads)(int count) = nullptr;  // of the calling thread
  bool is_gnu = false;
};

const Functions& functions() {
  static const Functions found;
  return found;
}

void sleep_with_team() {
#ifdef __linux__
  pthread_setname_np(pthread_self(), "xla_omp_sleeper");  // not the kernel thread's name, which new threads inherit
#endif
  at::get_num_threads();  // sets this thread's count at its first call
  functions().set_threads(functions().count_cores() + 1);
  std::atomic<int> never{0};
  run_on_all_threads([&] { never.wait(0, std::memory_order_acquire); });
}

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

bool sleep_between_loops() {
  if (!functions().is_gnu) {
    return false;
  }
  try {
    std::thread(sleep_with_team).detach();
  } catch (const std::system_error&) {
    return false;
  }
  return true;
}

void release_omp_team() {
  const Functions& openmp = functions();
  if (openmp.pause != nullptr && openmp.host != nullptr) {
    openmp.pause(kPauseSoft, openmp.host());
  }
}

}  // namespace torch_xla::handlers
