#include "graph/serialize.h"

#include <pybind11/stl.h>

#include <algorithm>

#include "compat/python_internal.h"
#include "ir/attribute_hash.h"
#include "ir/op.h"

namespace py = pybind11;
namespace torch_xla {
namespace {

// The tag of a serialized argument (tag, payload). Mirrored by ArgTag in graph/graph_spec.py, which documents the
// payloads.
enum ArgTag {
  kConstant = 0,
  kValue = 1,
  kValueList = 2,
  kFloatInput = 3,
  kIntInput = 4,
  kComplexInput = 5,
  kDtype = 6,
  kScalarList = 7
};

// Mirrored by FUNCTIONAL, IN_PLACE and SCATTER in graph/graph_spec.py.
enum SchemaKind { kFunctional = 0, kInPlace = 1, kScatter = 2 };

class Serializer {
 public:
  explicit Serializer(const Graph& graph) : graph_(graph) {}

  py::list nodes() {
    py::list out;
    for (const Node* node : graph_.nodes) {
      const Op* op = node->op->functional ? node->op->functional : node->op;
      const int schema_kind = node->is_scatter ? kScatter : node->op->functional ? kInPlace : kFunctional;
      const bool is_list = node->output_spec->is_list && node->op != getitem_op();
      out.append(py::make_tuple(op->name, schema_kind, arguments(*node), results(*node), is_list, node->origin,
                                static_cast<int>(node->default_dtype)));
    }
    return out;
  }

 private:
  py::object reference(const Node* input) const {
    const size_t position = input->pending() ? graph_.leaves.size() + input->index : input->index;
    return py::make_tuple(static_cast<int>(kValue), position);
  }

  // A getitem shares the output spec of the op whose result it selects.
  static py::list results(const Node& node) {
    py::list out;
    if (node.op == getitem_op()) {
      out.append(shape_and_dtype(node.output_spec->outs[node.out]));
      return out;
    }
    for (const auto& shape : node.output_spec->outs) {
      out.append(shape_and_dtype(shape));
    }
    return out;
  }

  static py::tuple shape_and_dtype(const Shape& shape) {
    const py::tuple sizes(py::cast(std::vector<int64_t>(shape.sizes.begin(), shape.sizes.end())));
    return py::make_tuple(sizes, static_cast<int>(shape.dtype));
  }

  py::object number(const c10::IValue& value) {
    if (value.isNone() || is_constant_number(value)) {
      return py::make_tuple(static_cast<int>(kConstant), compat::to_python(value));
    }
    if (value.isInt()) {
      return py::make_tuple(static_cast<int>(kIntInput), ints_++);
    }
    if (value.isDouble()) {
      return py::make_tuple(static_cast<int>(kFloatInput), floats_++);
    }
    floats_ += 2;
    return py::make_tuple(static_cast<int>(kComplexInput), floats_ - 2);
  }

  py::list arguments(const Node& node) {
    py::list out;
    if (node.op == seed_op()) {
      out.append(py::make_tuple(static_cast<int>(kIntInput), ints_++));
      return out;
    }
    if (node.op == getitem_op()) {
      out.append(reference(node.inputs[0].get()));
      out.append(py::make_tuple(static_cast<int>(kConstant), node.out));
      return out;
    }
    for (size_t i = 0; i < node.op->kinds.size(); ++i) {
      out.append(argument(node, i));
    }
    if (node.is_scatter) {  // the view's value, and the index of the view among the op's results
      out.append(reference(node.inputs[1].get()));
      out.append(py::make_tuple(static_cast<int>(kConstant), node.attrs.back().toInt()));
    }
    if (node.op->random) {
      out.append(reference(node.inputs.back().get()));
      out.append(py::make_tuple(static_cast<int>(kConstant), node.attrs.back().toInt()));
    }
    return out;
  }

  py::object argument(const Node& node, size_t i) {
    const c10::IValue& value = node.attrs[i];
    switch (node.op->kinds[i]) {
      case ArgKind::kTensor:
        if (node.numbers >> i & 1) {
          return number(value);
        }
        return value.isNone() ? number(value) : reference(node.inputs[value.toInt()].get());
      case ArgKind::kTensorList: {
        if (value.isNone()) {
          return number(value);
        }
        py::list list;
        for (const int64_t position : value.toIntVector()) {
          list.append(position < 0 ? py::object(py::make_tuple(static_cast<int>(kConstant), py::none()))
                                   : reference(node.inputs[position].get()));
        }
        return py::make_tuple(static_cast<int>(kValueList), list);
      }
      case ArgKind::kScalar:
        return number(value);
      case ArgKind::kScalars: {
        const auto numbers = value.toListRef();
        const bool uniform = is_uniform(numbers);
        py::list list;
        for (size_t i = 0; i < numbers.size(); ++i) {
          list.append(uniform && i > 0 ? py::object(list[0]) : number(numbers[i]));
        }
        return py::make_tuple(static_cast<int>(kScalarList), list);
      }
      case ArgKind::kDtype:
        return value.isNone() ? number(value)
                              : py::object(py::make_tuple(static_cast<int>(ArgTag::kDtype), value.toInt()));
      default:
        if (node.has_start && i == node.op->start) {
          return start(value);
        }
        // If the start is an operand, the end of a slice is serialized relative to it.
        if (start_is_operand_ && node.has_start && node.op->range_kind == RangeKind::kSlice &&
            i == node.op->start + 1u) {
          return py::make_tuple(static_cast<int>(kConstant), value.toInt() - node.attrs[node.op->start].toInt());
        }
        return py::make_tuple(static_cast<int>(kConstant), compat::to_python(value));
    }
  }

  py::object start(const c10::IValue& value) {
    start_is_operand_ = graph_.varying[starts_++] != 0;
    if (!start_is_operand_) {
      return py::make_tuple(static_cast<int>(kConstant), compat::to_python(value));
    }
    return py::make_tuple(static_cast<int>(kIntInput), varying_++);
  }

  const Graph& graph_;
  size_t floats_ = 0;
  size_t ints_ = 0;
  size_t starts_ = 0;
  // Index of the next start that is an operand: they are the last ints.
  size_t varying_ =
      graph_.ints.size() - static_cast<size_t>(std::count(graph_.varying.begin(), graph_.varying.end(), 1));
  bool start_is_operand_ = false;  // the start of the current node is an operand
};

}  // namespace

py::list serialize(const Graph& graph) { return Serializer(graph).nodes(); }

py::list root_positions(const Graph& graph) {
  py::list out;
  for (const auto& root : graph.roots) {
    out.append((root->pending() ? graph.leaves.size() : 0) + root->index);
  }
  return out;
}

py::list leaf_shapes(const Graph& graph) {
  py::list out;
  for (const Node* leaf : graph.leaves) {
    const Shape& s = leaf->shape();
    out.append(py::make_tuple(std::vector<int64_t>(s.sizes.begin(), s.sizes.end()), static_cast<int>(s.dtype)));
  }
  return out;
}

}  // namespace torch_xla
