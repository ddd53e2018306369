#include "graph/sync_reason.h"

#include <mutex>
#include <string>
#include <unordered_set>

namespace py = pybind11;
namespace torch_xla {
namespace {

thread_local const std::string* reason_here = nullptr;

// There are few, and a thread may die with one.
const std::string* kept_for_good(const std::string& reason) {
  static std::mutex mutex;
  static auto* reasons = new std::unordered_set<std::string>;
  const std::lock_guard<std::mutex> lock(mutex);
  return &*reasons->insert(reason).first;
}

// What this thread runs from enter() to leave(), it runs for this reason; one that is set already stays. To Python it
// is a context whose two methods are C++: an interrupt comes before one of them or after it, and leaves no reason
// behind.
class SyncReasonScope {
 public:
  explicit SyncReasonScope(const std::string& reason) : reason_(kept_for_good(reason)) {}
  void enter() {
    if (reason_here == nullptr) {
      reason_here = reason_;
      is_mine_ = true;
    }
  }
  void leave() {
    if (is_mine_) {
      reason_here = nullptr;
      is_mine_ = false;
    }
  }

 private:
  const std::string* reason_;
  bool is_mine_ = false;
};

}  // namespace

void bind_reasons(py::module_& m) {
  py::class_<SyncReasonScope>(m, "Because")
      .def(py::init<const std::string&>(), py::arg("reason"))
      .def("__enter__", &SyncReasonScope::enter)
      .def("__exit__", [](SyncReasonScope& because, const py::args&) { because.leave(); });
  m.def("reason", [] { return reason_here == nullptr ? py::object(py::none()) : py::object(py::str(*reason_here)); });
}

}  // namespace torch_xla
