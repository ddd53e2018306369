#include "interpreter/graph_interpreter.h"

#include <ATen/ATen.h>
#include <c10/core/DefaultDtype.h>
#include <pybind11/stl.h>

#include <array>
#include <chrono>
#include <unordered_set>

#include "aten/attention.h"
#include "compat/python_internal.h"
#include "interpreter/cpu_kernel_call.h"
#include "ir/op.h"
#include "runtime/device.h"
#include "runtime/host_tensor.h"
#include "runtime/python_hooks.h"

namespace py = pybind11;
namespace torch_xla {
namespace {

using at::Tensor;
using Dtypes = std::array<at::ScalarType, static_cast<size_t>(at::ScalarType::NumOptions)>;
using Clock = std::chrono::steady_clock;

// Memory that nobody has written to is zeros, so that a program that reads it does the same every time.
bool is_empty(const Op* op) {
  static const std::unordered_set<const Op*> ops{
      find_op("aten::empty.memory_format"), find_op("aten::empty_strided"),     find_op("aten::empty_like"),
      find_op("aten::new_empty"),           find_op("aten::new_empty_strided"),
  };
  return ops.count(op) != 0;
}

// A kernel has refused: what it is of is to be compiled.
struct NotInterpretable : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Interpretation {
 public:
  Interpretation(const Graph& graph, std::vector<Tensor> leaves, const Dtypes& stored,
                 const py::function& call_python_fallback)
      : graph_(graph),
        leaves_(std::move(leaves)),
        stored_(stored),
        apart_(call_python_fallback),
        values_(graph.nodes.size()) {}

  std::vector<Tensor> run() {
    count_uses();
    for (const Node* node : graph_.nodes) {
      Values& made = values_[node->index];
      made = computed_or_refused(*node);
      round(*node, made);
      for (const auto& input : node->inputs) {
        if (input->pending() && --uses_[input->index] == 0) {
          values_[input->index].clear();
        }
      }
      let_signals_in();
    }
    return results();
  }

 private:
  void count_uses() {
    uses_.resize(graph_.nodes.size());
    for (const Node* node : graph_.nodes) {
      for (const auto& input : node->inputs) {
        count_use(*input);
      }
    }
    for (const auto& root : graph_.roots) {
      count_use(*root);
    }
  }

  // What has a value already is a leaf: its index counts leaves.
  void count_use(const Node& node) {
    if (node.pending()) {
      ++uses_[node.index];
    }
  }

  // What comes out of Python, from signal handlers too, goes on as it is.
  Values computed_or_refused(const Node& node) {
    try {
      return computed(node);
    } catch (const py::error_already_set&) {
      throw;
    } catch (const std::exception& error) {
      throw NotInterpretable(node.op->name + ": " + error.what());
    }
  }

  //   op                                              computed
  //   a seed                                          not at all: those who draw with it read it themselves
  //   result of another                               taken from that
  //   never written                                   zeros
  //   a write through a view that shows things once   by writing to a copy
  //   a conversion                                    by torch's own
  //   attention without dropout                       by torch's for the CPU, which has another name
  //   no random numbers, a kernel for the CPU         by that
  //   any other                                       apart
  Values computed(const Node& node) {
    TORCH_CHECK(node.default_dtype == default_dtype_, "recorded with another default dtype");
    static const Op* convert = find_op("prims::convert_element_type");
    static const Op* resize = find_op("aten::resize");
    if (node.op == seed_op()) {
      return {};
    }
    if (node.op == getitem_op()) {
      const Tensor& one = values_[node.inputs[0]->index].at(node.out);
      TORCH_CHECK(one.defined(), node.inputs[0]->op->name, ": result ", node.out,
                  " of the kernel for the CPU is not what the recorder promised");
      return {one};
    }
    const Op& op = node.op->functional != nullptr ? *node.op->functional : *node.op;
    if (is_empty(&op)) {
      const Shape& shape = node.signature->outs[0];
      return {at::zeros(shape.sizes, at::TensorOptions().dtype(shape.dtype).device(at::kCPU))};
    }
    if (node.is_scatter) {
      return op.may_overlap ? call_python_fallback(node) : written(node, op);
    }
    if (&op == convert) {
      return {value(*node.inputs[0]).to(static_cast<at::ScalarType>(node.attrs[1].toInt()))};
    }
    if (&op == resize || op.name.rfind("aten::", 0) != 0) {
      return call_python_fallback(node);
    }
    torch::jit::Stack stack = arguments(node, op);
    if (auto found = attention_on_cpu(op, *node.signature, stack)) {
      return conform_results(node, std::move(*found));
    }
    if (op.random || !op.handle.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)) {
      return call_python_fallback(node);
    }
    op.handle.callBoxed(&stack);
    return conform_results(node, kernel_results(stack));
  }

  const Tensor& value(const Node& node) const {
    return node.pending() ? values_[node.index].at(0) : leaves_[node.index];
  }

  torch::jit::Stack arguments(const Node& node, const Op& op) const {
    return kernel_arguments(node, op, [this](const Node& operand) -> const Tensor& { return value(operand); });
  }

  Values written(const Node& node, const Op& op) {
    const Tensor memory = value(*node.inputs[0]).clone(at::MemoryFormat::Contiguous);
    torch::jit::Stack stack = arguments(node, op);
    stack[0] = memory;
    op.handle.callBoxed(&stack);
    kernel_results(stack).at(node.attrs.back().toInt()).copy_(value(*node.inputs[1]));
    return {memory};
  }

  // Where the device stores a dtype as a narrower one, no value has more digits than that.
  void round(const Node& node, Values& made) const {
    const auto& outs = node.signature->outs;
    for (size_t i = 0; i < made.size() && node.op != getitem_op(); ++i) {
      const at::ScalarType narrow = stored_[static_cast<size_t>(outs[i].dtype)];
      if (made[i].defined() && narrow != outs[i].dtype) {
        made[i] = made[i].to(narrow).to(outs[i].dtype);
      }
    }
  }

  Values call_python_fallback(const Node& node) {
    const GilScope here;
    py::dict operands;
    for (const auto& input : node.inputs) {
      if (input->op != seed_op()) {
        operands[py::int_((input->pending() ? leaves_.size() : 0) + input->index)] =
            py::cast(HostTensor{dense(value(*input))});
      }
    }
    const auto& outs = node.signature->outs;
    const py::list arrays = apart_(node.index, operands);
    Values found;
    for (size_t i = 0; i < outs.size(); ++i) {
      const py::object array = arrays[i];
      found.push_back(array.is_none() ? Tensor() : first_of(array, outs[i]));
    }
    return found;
  }

  // What was promised, of an array that may go on after it.
  Tensor first_of(const py::object& array, const Shape& promised) const {
    array.attr("block_until_ready")();
    const auto sizes = array.attr("shape").cast<std::vector<int64_t>>();
    const Tensor whole = tensor_from_array(array, stored_[static_cast<size_t>(promised.dtype)], sizes);
    return whole.reshape({-1}).narrow(0, 0, promised.elements()).reshape(promised.sizes).to(promised.dtype);
  }

  // As the device stores it.
  Tensor dense(const Tensor& tensor) const {
    const Tensor plain = tensor.resolve_conj().resolve_neg();
    return plain.to(stored_[static_cast<size_t>(plain.scalar_type())]).contiguous();
  }

  // Ctrl-C ends an interpretation between two kernels.
  void let_signals_in() {
    const auto now = Clock::now();
    if (now - last_look_ < std::chrono::milliseconds(50)) {
      return;
    }
    last_look_ = now;
    const GilScope here;
    if (PyErr_CheckSignals() != 0) {
      throw py::error_already_set();
    }
  }

  std::vector<Tensor> results() {
    std::unordered_set<c10::StorageImpl*> taken;
    for (const Tensor& leaf : leaves_) {
      taken.insert(leaf.storage().unsafeGetStorageImpl());
    }
    std::vector<Tensor> found;
    for (const auto& root : graph_.roots) {
      Tensor result = dense(value(*root));
      const bool is_whole = result.storage().nbytes() == result.nbytes();
      if (!taken.insert(result.storage().unsafeGetStorageImpl()).second || !is_whole) {
        result = result.clone(at::MemoryFormat::Contiguous);
      }
      found.push_back(std::move(result));
    }
    return found;
  }

  const Graph& graph_;
  const std::vector<Tensor> leaves_;
  const Dtypes& stored_;
  const py::function& apart_;
  std::vector<Values> values_;
  std::vector<uint32_t> uses_;  // of each value, still to come
  const at::ScalarType default_dtype_ = c10::get_default_dtype_as_scalartype();
  Clock::time_point last_look_ = Clock::now();
};

Dtypes dtypes_of(const py::list& stored) {
  Dtypes found;
  for (size_t i = 0; i < found.size(); ++i) {
    found[i] = static_cast<at::ScalarType>(i);
  }
  for (const py::handle& pair : stored) {
    const auto [dtype, narrow] = pair.cast<std::pair<int, int>>();
    found.at(dtype) = static_cast<at::ScalarType>(narrow);
  }
  return found;
}

}  // namespace

py::list interpret(const Graph& graph, const py::list& arrays, const py::list& stored,
                   const py::function& call_python_fallback) {
  const Dtypes dtypes = dtypes_of(stored);
  std::vector<Tensor> leaves, found;
  {
    const CpuDispatchScope kernels;
    for (size_t i = 0; i < graph.leaves.size(); ++i) {
      const Shape& shape = graph.leaves[i]->shape();
      const at::ScalarType narrow = dtypes[static_cast<size_t>(shape.dtype)];
      leaves.push_back(
          tensor_from_array(py::reinterpret_borrow<py::object>(arrays[i]), narrow, shape.sizes).to(shape.dtype));
    }
    const PythonReentryScope here;
    py::gil_scoped_release release;
    found = Interpretation(graph, std::move(leaves), dtypes, call_python_fallback).run();
  }
  py::list results;
  for (Tensor& result : found) {
    results.append(py::cast(HostTensor{std::move(result)}));
  }
  return results;
}

void bind_interpretation(py::module_& m) {
  py::register_exception<NotInterpretable>(m, "NotInterpretable", PyExc_RuntimeError);
  m.def("interpret", &interpret, py::arg("graph"), py::arg("arrays"), py::arg("stored"), py::arg("apart"));
}

}  // namespace torch_xla
