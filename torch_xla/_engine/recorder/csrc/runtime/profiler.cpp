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

// A handle to the profile that is active on the constructing thread. torch assigns spans to the thread that adds them,
// shown as its row: use a separate thread, because device spans may overlap the host's spans.
class Profile {
 public:
  // Adds a span; times in ns of the Unix epoch. The profiler must be running. Does nothing for profilers without spans,
  // such as on-demand (daemon) ones.
  void add(const std::string& name, int64_t start, int64_t end) const {
    constexpr int64_t kNoHandle = -1;
    c10::DebugInfoGuard guard(info_);
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

// Sets the system's name of this thread, truncated to 15 characters.
void name_thread(const std::string& name) { pthread_setname_np(pthread_self(), name.substr(0, 15).c_str()); }

}  // namespace

void bind_profiler(py::module_& m) {
  py::class_<Profile>(m, "Profile").def(py::init<>()).def("add", &Profile::add);
  m.def("profiled", &profiled);
  m.def("name_thread", &name_thread);
}

}  // namespace torch_xla
