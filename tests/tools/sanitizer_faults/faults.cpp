// What tests/tools/sanitize.py has to find, or it would not find such faults in the recorder either.
#include <Python.h>

#include <limits>
#include <memory>
#include <thread>

namespace {

// What optimizers may not reason about.
volatile int sink = 0;

void use_after_free() {
  auto value = std::make_unique<int>(1);
  const int* volatile stale = value.get();
  value.reset();
  sink = *stale;
}

void overflow() {
  sink = std::numeric_limits<int>::max();
  sink = sink + 1;
}

// Two writers whom nothing orders.
void race() {
  static int shared = 0;
  const auto write = [] {
    for (int i = 0; i < 1000; ++i) {
      shared = shared + 1;
      std::this_thread::yield();
    }
  };
  std::thread first(write);
  std::thread second(write);
  first.join();
  second.join();
  sink = shared;
}

template <void (*fault)()>
PyObject* call(PyObject*, PyObject*) {
  fault();
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {{"use_after_free", &call<&use_after_free>, METH_NOARGS, nullptr},
                         {"overflow", &call<&overflow>, METH_NOARGS, nullptr},
                         {"race", &call<&race>, METH_NOARGS, nullptr},
                         {nullptr, nullptr, 0, nullptr}};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "faults", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_faults() { return PyModule_Create(&module); }
