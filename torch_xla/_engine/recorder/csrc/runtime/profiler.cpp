#include "runtime/profiler.h"

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <pthread.h>

#include <memory>
#include <string>

#include "compat/profiler_internal.h"

namespace py = pybind11;
namespace torch_xla {
namespace {

bool profiled() { return compat::profilerType() == compat::ActiveProfilerType::KINETO; }

// The profile of the thread that made it. Spans belong to the thread that adds them, as whose row they are shown: that
// of the host would be torn where a program of the device ends in the middle of one of its spans.
class Profile {
 public:
  // Times in ns of the Unix epoch. The profile runs. Nothing where it takes no spans, as one that a daemon asked for.
  void add(const std::string& name, int64_t start, int64_t end) const {
    constexpr int64_t kNoHandle = -1;
    c10::DebugInfoGuard here(info_);
    if (!profiled()) {
      return;
    }
    try {
      compat::reportBackendEventToActiveKinetoProfiler(start / 1000, end / 1000, kNoHandle, at::RecordScope::USER_SCOPE,
                                                       name, "xla");
    } catch (const c10::Error&) {
    }
  }

 private:
  std::shared_ptr<c10::ThreadLocalDebugInfo> info_ = c10::ThreadLocalDebugInfo::current();
};

// What the system calls this thread; the first 15 characters of it.
void name_thread(const std::string& name) { pthread_setname_np(pthread_self(), name.substr(0, 15).c_str()); }

}  // namespace

void bind_profiler(py::module_& m) {
  py::class_<Profile>(m, "Profile").def(py::init<>()).def("add", &Profile::add);
  m.def("profiled", &profiled);
  m.def("name_thread", &name_thread);
}

}  // namespace torch_xla
