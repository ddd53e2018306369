// A validated device ordinal passed from Python (validated_ordinal). Bindings take this type, never a plain int.
#pragma once

#include <pybind11/pybind11.h>

#include "runtime/device.h"

namespace torch_xla {

struct Ordinal {
  int8_t index = 0;
  operator int8_t() const { return index; }
};

}  // namespace torch_xla

template <>
struct pybind11::detail::type_caster<torch_xla::Ordinal> {
  PYBIND11_TYPE_CASTER(torch_xla::Ordinal, const_name("int"));

  bool load(handle source, bool convert) {
    make_caster<int64_t> number;
    if (!number.load(source, convert)) {
      return false;
    }
    value.index = torch_xla::validated_ordinal(static_cast<int64_t>(number));
    return true;
  }
};
