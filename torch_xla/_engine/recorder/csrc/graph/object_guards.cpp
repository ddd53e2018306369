#include "graph/object_guards.h"

#include <cstring>
#include <string>

namespace py = pybind11;
namespace torch_xla {
namespace {

bool is_equal(PyObject* found, PyObject* expected) {
  if (found == expected) {
    return true;
  }
  if (Py_TYPE(found) != Py_TYPE(expected)) {
    return false;
  }
  if (PyFloat_CheckExact(found)) {
    const double a = PyFloat_AS_DOUBLE(found);
    const double b = PyFloat_AS_DOUBLE(expected);
    return std::memcmp(&a, &b, sizeof(a)) == 0;
  }
  const int equal = PyObject_RichCompareBool(found, expected, Py_EQ);
  if (equal < 0) {
    PyErr_Clear();
  }
  return equal == 1;
}

bool has_size(PyObject* container, PyObject* expected) {
  const Py_ssize_t size = PyObject_Size(container);
  return size == PyLong_AsSsize_t(expected);
}

bool has_attribute(PyObject* object, PyObject* name, PyObject* expected) {
  PyObject* found = PyObject_GetAttr(object, name);
  if (found == nullptr) {
    PyErr_Clear();
    return false;
  }
  const bool equal = is_equal(found, expected);
  Py_DECREF(found);
  return equal;
}

bool holds(char kind, PyObject* container, PyObject* key, PyObject* expected) {
  PyObject* found = nullptr;  // borrowed
  switch (kind) {
    case 'i':
    case 'e':
      found = PyDict_GetItemWithError(container, key);
      if (found == nullptr) {
        PyErr_Clear();
        return false;
      }
      return kind == 'i' ? found == expected : is_equal(found, expected);
    case 'I':
    case 'E': {
      const Py_ssize_t position = PyLong_AsSsize_t(key);
      if (position >= PyList_GET_SIZE(container)) {
        return false;
      }
      found = PyList_GET_ITEM(container, position);
      return kind == 'I' ? found == expected : is_equal(found, expected);
    }
    case 'n':
      return has_size(container, expected);
    case 'c':
    case 'C':
      found = PyCell_GET(container);
      return found != nullptr && (kind == 'c' ? found == expected : is_equal(found, expected));
    default:
      return has_attribute(container, key, expected);
  }
}

}  // namespace

void bind_object_guards(py::module_& m) {
  m.def("failed_guard",
        [](const std::string& kinds, const py::list& containers, const py::list& keys,
           const py::list& expected) -> int64_t {
          for (size_t i = 0; i < kinds.size() && i < containers.size(); ++i) {
            const auto at = static_cast<Py_ssize_t>(i);
            if (!holds(kinds[i], PyList_GET_ITEM(containers.ptr(), at), PyList_GET_ITEM(keys.ptr(), at),
                       PyList_GET_ITEM(expected.ptr(), at))) {
              return static_cast<int64_t>(i);
            }
          }
          return -1;
        });
}

}  // namespace torch_xla
