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

// Finds a function of the OpenMP runtime that torch is linked with: a process may load several.
template <typename Function>
Function* find_function(const char* name) {
  Dl_info torch;
  if (dladdr(reinterpret_cast<void*>(&at::get_num_threads), &torch) == 0) {
    return nullptr;
  }
  void* library = dlopen(torch.dli_fname, RTLD_NOLOAD | RTLD_LAZY);  // also finds symbols of its dependencies
  return library == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library, name));
}

void sleep_with_team(int count, void (*set_threads)(int)) {
#ifdef __linux__
  pthread_setname_np(pthread_self(), "xla_omp_sleeper");  // not the kernel thread's name, which new threads inherit
#endif
  at::get_num_threads();  // sets this thread's count at its first call
  set_threads(count);
  std::atomic<int> never{0};
  parallel_for(count, [&](int64_t, int64_t) { never.wait(0, std::memory_order_acquire); });
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

void sleep_between_loops() {
  auto* const set_threads = find_function<void(int)>("omp_set_num_threads");  // of the calling thread
  auto* const count_cores = find_function<int()>("omp_get_num_procs");
  if (auto* const set_block_time = find_function<void(int)>("kmp_set_blocktime")) {  // of LLVM's OpenMP
    set_block_time(0);
  } else if (set_threads != nullptr && count_cores != nullptr) {
    try {
      std::thread(sleep_with_team, count_cores() + 1, set_threads).detach();
    } catch (const std::system_error&) {  // teams spin
    }
  }
}

}  // namespace torch_xla::handlers
