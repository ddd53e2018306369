#include "graph/sync_reason.h"

#include <mutex>
#include <string>
#include <unordered_set>

namespace py = pybind11;
namespace torch_xla {
namespace {

thread_local const std::string* current_reason = nullptr;

// Interned forever: there are few reasons, and a thread may end with one set.
const std::string* intern_reason(const std::string& reason) {
  static std::mutex mutex;
  static auto* reasons = new std::unordered_set<std::string>;
  const std::lock_guard<std::mutex> lock(mutex);
  return &*reasons->insert(reason).first;
}

// Sets the sync reason of this thread from enter() to leave(), unless one is set already. A Python context manager
// whose methods are C++: an interrupt occurs before or after them, and leaves no reason behind.
class SyncReasonScope {
 public:
  explicit SyncReasonScope(const std::string& reason) : reason_(intern_reason(reason)) {}
  void enter() {
    if (current_reason == nullptr) {
      current_reason = reason_;
      is_outermost_ = true;
    }
  }
  void leave() {
    if (is_outermost_) {
      current_reason = nullptr;
      is_outermost_ = false;
    }
  }

 private:
  const std::string* reason_;
  bool is_outermost_ = false;
};

}  // namespace

void bind_sync_reasons(py::module_& m) {
  py::class_<SyncReasonScope>(m, "Because")
      .def(py::init<const std::string&>(), py::arg("reason"))
      .def("__enter__", &SyncReasonScope::enter)
      .def("__exit__", [](SyncReasonScope& scope, const py::args&) { scope.leave(); });
  m.def("reason",
        [] { return current_reason == nullptr ? py::object(py::none()) : py::object(py::str(*current_reason)); });
}

}  // namespace torch_xla
