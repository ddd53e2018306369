// Guards on Python objects: flat lists, owned by Python so that its garbage collector sees them.
//
//  kind   container   key         expected
//  'i'    dict        key         the item is this object
//  'e'    dict        key         the item equals this value, which is of the same type (numbers bit by bit)
//  'I'    list        position    the item is this object
//  'E'    list        position    the item equals this value
//  'n'    dict, list  -           the number of items
//  'c'    cell        -           the contents are this object
//  'C'    cell        -           the contents equal this value
//  'a'    object      name        the attribute equals this value
#pragma once

#include <pybind11/pybind11.h>

namespace torch_xla {

// Binds failed_guard(kinds: bytes, containers, keys, expected) -> position of the first guard that fails, or -1.
void bind_object_guards(pybind11::module_& m);

}  // namespace torch_xla
