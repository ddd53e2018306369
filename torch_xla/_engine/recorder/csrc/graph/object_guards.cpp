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

Py_ssize_t size_of(PyObject* container) {
  if (PyDict_Check(container)) {
    return PyDict_GET_SIZE(container);
  }
  const Py_ssize_t size = PyObject_Size(container);
  if (size < 0) {
    PyErr_Clear();
  }
  return size;
}

bool has_attribute(PyObject* object, PyObject* name, PyObject* expected, bool by_value) {
  PyObject* found = PyObject_GetAttr(object, name);
  if (found == nullptr) {
    PyErr_Clear();
    return false;
  }
  const bool equal = found == expected || (by_value && is_equal(found, expected));
  Py_DECREF(found);
  return equal;
}

// For sets, which may be of another class than the expected one.
bool is_equal_set(PyObject* set, PyObject* expected) {
  const int equal = PyObject_RichCompareBool(set, expected, Py_EQ);
  if (equal < 0) {
    PyErr_Clear();
  }
  return equal == 1;
}

// Returns whether the items of a sequence without positions are those of the tuple; numbers and texts may be equal.
bool has_items(PyObject* items, PyObject* expected) {
  PyObject* iterator = PyObject_GetIter(items);
  Py_ssize_t position = 0;
  bool equal = iterator != nullptr;
  for (PyObject* item = nullptr; equal && (item = PyIter_Next(iterator)) != nullptr; ++position) {
    PyObject* wanted = position < PyTuple_GET_SIZE(expected) ? PyTuple_GET_ITEM(expected, position) : nullptr;
    const bool by_value = wanted != nullptr && (PyFloat_Check(wanted) || PyLong_Check(wanted) ||
                                                PyUnicode_Check(wanted) || PyBytes_Check(wanted));
    equal = wanted != nullptr && (item == wanted || (by_value && is_equal(item, wanted)));
    Py_DECREF(item);
  }
  Py_XDECREF(iterator);
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    return false;
  }
  return equal && position == PyTuple_GET_SIZE(expected);
}

bool has_bytes(PyObject* array, PyObject* expected) {
  Py_buffer view;
  if (PyObject_GetBuffer(array, &view, PyBUF_C_CONTIGUOUS) != 0) {
    PyErr_Clear();
    return false;
  }
  const bool equal =
      view.len == PyBytes_GET_SIZE(expected) && std::memcmp(view.buf, PyBytes_AS_STRING(expected), view.len) == 0;
  PyBuffer_Release(&view);
  return equal;
}

// Returns a borrowed reference; null if there is no such item.
PyObject* dict_item(PyObject* dict, PyObject* key) {
  PyObject* found = PyDict_GetItemWithError(dict, key);
  if (found == nullptr) {
    PyErr_Clear();
  }
  return found;
}

PyObject* list_item(PyObject* list, Py_ssize_t position) {
  return position < PyList_GET_SIZE(list) ? PyList_GET_ITEM(list, position) : nullptr;
}

}  // namespace

GuardTable::GuardTable(const std::string& kinds, const py::list& containers, const py::list& keys,
                       const py::list& expected) {
  guards_.reserve(kinds.size());
  for (size_t i = 0; i < kinds.size(); ++i) {
    const auto at = static_cast<Py_ssize_t>(i);
    Guard guard{PyList_GET_ITEM(containers.ptr(), at),
                PyList_GET_ITEM(keys.ptr(), at),
                PyList_GET_ITEM(expected.ptr(), at),
                0,
                kinds[i],
                false};
    if (guard.kind == 'n' || guard.kind == 'I' || guard.kind == 'E') {
      guard.number = PyLong_AsSsize_t(guard.kind == 'n' ? guard.expected : guard.key);
    }
    guards_.push_back(guard);
  }
  for (size_t i = 0; i < guards_.size(); ++i) {
    guards_[i].is_walked = lists_all_items(i);
  }
}

bool GuardTable::lists_all_items(size_t at) const {
  const Guard& size = guards_[at];
  if (size.kind != 'n' || !PyDict_Check(size.container) || size.number != PyDict_GET_SIZE(size.container) ||
      at + static_cast<size_t>(size.number) >= guards_.size()) {
    return false;
  }
  const Guard* item = &size;
  PyObject *key = nullptr, *value = nullptr;
  for (Py_ssize_t position = 0; PyDict_Next(size.container, &position, &key, &value) != 0;) {
    ++item;
    if (item->container != size.container || item->key != key || (item->kind != 'i' && item->kind != 'e')) {
      return false;
    }
  }
  return true;
}

// In the order of the items, no key is hashed: the hash of a tensor is a call of Python.
bool GuardTable::holds_items(const Guard* size) {
  const Guard* item = size;
  const Guard* last = size + size->number;
  PyObject *key = nullptr, *value = nullptr;
  for (Py_ssize_t position = 0; PyDict_Next(size->container, &position, &key, &value) != 0;) {
    if (item == last || (++item)->key != key ||
        !(value == item->expected || (item->kind == 'e' && is_equal(value, item->expected)))) {
      return false;
    }
  }
  return item == last;
}

bool GuardTable::holds(const Guard& guard) {
  switch (guard.kind) {
    case 'n':
      return size_of(guard.container) == guard.number;
    case 's':
      return is_equal_set(guard.container, guard.expected);
    case 'd':
      return has_items(guard.container, guard.expected);
    case 'b':
      return has_bytes(guard.container, guard.expected);
    case 'a':
    case 'A':
      return has_attribute(guard.container, guard.key, guard.expected, guard.kind == 'a');
    default:
      return holds_item(guard);
  }
}

bool GuardTable::holds_item(const Guard& guard) {
  PyObject* found = nullptr;  // borrowed
  switch (guard.kind) {
    case 'c':
    case 'C':
      found = PyCell_GET(guard.container);
      break;
    case 'I':
    case 'E':
      found = list_item(guard.container, guard.number);
      break;
    default:
      found = dict_item(guard.container, guard.key);
  }
  const bool by_value = guard.kind == 'e' || guard.kind == 'E' || guard.kind == 'C';
  return found != nullptr && (found == guard.expected || (by_value && is_equal(found, guard.expected)));
}

int64_t GuardTable::failed() const {
  for (size_t i = 0; i < guards_.size(); ++i) {
    if (guards_[i].is_walked && holds_items(&guards_[i])) {
      i += static_cast<size_t>(guards_[i].number);
    } else if (!holds(guards_[i])) {
      return static_cast<int64_t>(i);
    }
  }
  return -1;
}

void bind_object_guards(py::module_& m) {
  py::class_<GuardTable>(m, "GuardTable")
      .def(py::init<const std::string&, const py::list&, const py::list&, const py::list&>(), py::kw_only(),
           py::arg("kinds"), py::arg("containers"), py::arg("keys"), py::arg("expected"))
      .def("failed", &GuardTable::failed);
}

}  // namespace torch_xla
