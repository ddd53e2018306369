// Guards on Python objects: flat lists, owned by Python so that its garbage collector sees them.
//
//  kind   container   key         expected
//  'i'    dict        key         the item is this object
//  'e'    dict        key         the item equals this value, which is of the same type (numbers bit by bit)
//  'I'    list        position    the item is this object
//  'E'    list        position    the item equals this value
//  'n'    dict, list  -           the number of items
//  's'    set         -           equals this set
//  'd'    deque       -           the items are those of this tuple, or equal them
//  'b'    buffer      -           the bytes of the array are these
//  'c'    cell        -           the contents are this object
//  'C'    cell        -           the contents equal this value
//  'a'    object      name        the attribute equals this value
//  'A'    object      name        the attribute is this object
#pragma once

#include <pybind11/pybind11.h>

#include <vector>

namespace torch_xla {

// The guards in the form in which they are checked. Owned by the Python object that owns the lists, immutable. It holds
// borrowed references: the lists outlive it and do not change.
class GuardTable {
 public:
  GuardTable(const std::string& kinds, const pybind11::list& containers, const pybind11::list& keys,
             const pybind11::list& expected);
  // Returns the position of the first guard that fails, or -1.
  int64_t failed() const;

 private:
  struct Guard {
    PyObject* container;
    PyObject* key;
    PyObject* expected;
    Py_ssize_t number;  // the position of 'I' and 'E', the size of 'n'
    char kind;
    bool is_walked;  // 'n' of a dict, of which the guards that follow list each item in order
  };

  static bool holds(const Guard& guard);
  static bool holds_item(const Guard& guard);
  static bool holds_items(const Guard* size);
  bool lists_all_items(size_t at) const;

  std::vector<Guard> guards_;
};

void bind_object_guards(pybind11::module_& m);

}  // namespace torch_xla
