#include "interpreter/graph_interpreter.h"

#include <ATen/ATen.h>
#include <c10/core/DefaultDtype.h>
#include <pybind11/stl.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <array>
#include <chrono>
#include <unordered_set>

#include "aten/attention.h"
#include "compat/python_internal.h"
#include "interpreter/cpu_kernel_call.h"
#include "interpreter/evaluation_order.h"
#include "interpreter/foreach_elements.h"
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

constexpr size_t kMostFreed = size_t{256} << 20;  // bytes

// Uninitialized memory is zeros, so that a program that reads it is deterministic.
bool is_empty(const Op* op) {
  static const std::unordered_set<const Op*> ops{
      find_op("aten::empty.memory_format"), find_op("aten::empty_strided"),     find_op("aten::empty_like"),
      find_op("aten::new_empty"),           find_op("aten::new_empty_strided"),
  };
  return ops.count(op) != 0;
}

// Returns whether the results of ATen's kernel depend on the CPU, unlike those of a program: with AMX, float8 products
// out of range are NaN and do not saturate.
bool depends_on_cpu(const Op* op) {
  static const std::unordered_set<const Op*> ops{find_op("aten::_scaled_mm"), find_op("aten::_scaled_mm_v2")};
  return ops.count(op) != 0;
}

// A kernel rejected the graph: compile it instead.
struct NotInterpretable : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class GraphInterpreter {
 public:
  GraphInterpreter(const Graph& graph, std::vector<Tensor> leaves, const Dtypes& storage_dtypes,
                   const py::function& call_python_fallback)
      : graph_(graph),
        leaves_(std::move(leaves)),
        storage_dtypes_(storage_dtypes),
        python_fallback_(call_python_fallback),
        values_(graph.nodes.size()) {}

  std::vector<Tensor> run() {
    const std::vector<const Node*> order = evaluation_order(graph_);
    count_uses(order);
    for (const Node* node : order) {
      compute_value(*node);
    }
    return results();
  }

 private:
  void compute_value(const Node& node) {
    Values& results = values_[node.index];
    results = compute_or_raise(node);
    round_to_storage(node, results);
    visit_operands(node, [this](const NodePtr& input) {
      if (input->pending() && --uses_[input->index] == 0) {
        release(values_[input->index]);
      }
    });
    check_signals();
  }

  // malloc retains what is freed between blocks in use, which for a large model is as much as the model: return it to the
  // system now and then.
  void release(Values& values) {
    for (const Tensor& value : values) {
      freed_ += value.defined() && value.storage().use_count() == 1 ? value.storage().nbytes() : 0;
    }
    values.clear();
    if (freed_ > kMostFreed) {
      freed_ = 0;
#ifdef __GLIBC__
      malloc_trim(0);
#endif
    }
  }

  void count_uses(const std::vector<const Node*>& order) {
    uses_.resize(graph_.nodes.size());
    for (const Node* node : order) {
      visit_operands(*node, [this](const NodePtr& input) { count_use(*input); });
    }
    for (const auto& root : graph_.roots) {
      count_use(*root);
    }
  }

  // A node that has a value is a leaf: its index counts leaves.
  void count_use(const Node& node) {
    if (node.pending()) {
      ++uses_[node.index];
    }
  }

  // Errors of Python code, including signal handlers, propagate unchanged.
  Values compute_or_raise(const Node& node) {
    try {
      return compute(node);
    } catch (const py::error_already_set&) {
      throw;
    } catch (const std::exception& error) {
      throw NotInterpretable(node.op->name + ": " + error.what());
    }
  }

  //   op                                           how it is computed
  //   seed                                         not computed: ops that draw read it themselves
  //   element of a foreach op                      that op, on lists of one element
  //   other getitem                                selected from the operand's results
  //   uninitialized memory                         zeros
  //   scatter through a view without overlaps      writes to a copy
  //   dtype conversion                             Tensor.to
  //   attention without dropout                    the CPU's attention kernel, which has another name
  //   not random, has a CPU kernel                 that kernel, if its results are those of any CPU
  //   any other                                    Python fallback
  Values compute(const Node& node) {
    TORCH_CHECK(node.default_dtype == default_dtype_, "it was recorded with another default dtype");
    static const OpPointer convert("prims::convert_element_type");
    static const OpPointer resize("aten::resize");
    if (node.op == seed_op()) {
      return {};
    }
    if (is_element(node)) {
      return compute_element(*node.inputs[0], node.out);
    }
    if (node.op == getitem_op()) {
      const Tensor& one = values_[node.inputs[0]->index].at(node.out);
      TORCH_CHECK(one.defined(), node.inputs[0]->op->name, ": result ", node.out,
                  " of the CPU kernel does not match its output spec");
      return {one};
    }
    const Op& op = node.op->functional != nullptr ? *node.op->functional : *node.op;
    if (is_empty(&op)) {
      const Shape& shape = node.output_spec->outs[0];
      return {at::zeros(shape.sizes, at::TensorOptions().dtype(shape.dtype).device(at::kCPU))};
    }
    if (node.is_scatter) {
      return op.may_overlap ? call_python_fallback(node) : compute_scatter(node, op);
    }
    if (&op == convert) {
      return {value(*node.inputs[0]).to(static_cast<at::ScalarType>(node.attrs[1].toInt()))};
    }
    if (&op == resize || depends_on_cpu(&op) || op.name.rfind("aten::", 0) != 0) {
      return call_python_fallback(node);
    }
    torch::jit::Stack stack = arguments(node, op);
    if (auto found = attention_on_cpu(op, *node.output_spec, stack)) {
      return conform_results(node, node.output_spec->outs, std::move(*found));
    }
    if (op.random || !op.handle.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)) {
      return call_python_fallback(node);
    }
    op.handle.callBoxed(&stack);
    return conform_results(node, node.output_spec->outs, kernel_results(stack));
  }

  Values compute_element(const Node& node, size_t i) {
    TORCH_CHECK(node.default_dtype == default_dtype_, "it was recorded with another default dtype");
    torch::jit::Stack stack =
        element_arguments(node, i, [this](const Node& operand) -> const Tensor& { return value(operand); });
    node.op->handle.callBoxed(&stack);
    return conform_results(node, c10::ArrayRef<Shape>(node.output_spec->outs[i]), kernel_results(stack));
  }

  const Tensor& value(const Node& node) const {
    return node.pending() ? values_[node.index].at(0) : leaves_[node.index];
  }

  torch::jit::Stack arguments(const Node& node, const Op& op) const {
    return kernel_arguments(node, op, [this](const Node& operand) -> const Tensor& { return value(operand); });
  }

  Values compute_scatter(const Node& node, const Op& op) {
    const Tensor base = value(*node.inputs[0]).clone(at::MemoryFormat::Contiguous);
    torch::jit::Stack stack = arguments(node, op);
    stack[0] = base;
    op.handle.callBoxed(&stack);
    kernel_results(stack).at(node.attrs.back().toInt()).copy_(value(*node.inputs[1]));
    return {base};
  }

  // Rounds values to the precision of the storage dtype, if the device stores a dtype as a narrower one.
  void round_to_storage(const Node& node, Values& results) const {
    const bool rounded = node.op == getitem_op() && !is_element(node);
    const c10::ArrayRef<Shape> outs = is_element(node) ? c10::ArrayRef<Shape>(node.shape()) : node.output_spec->outs;
    for (size_t i = 0; i < results.size() && !rounded; ++i) {
      const at::ScalarType storage_dtype = storage_dtypes_[static_cast<size_t>(outs[i].dtype)];
      if (results[i].defined() && storage_dtype != outs[i].dtype) {
        results[i] = results[i].to(storage_dtype).to(outs[i].dtype);
      }
    }
  }

  Values call_python_fallback(const Node& node) {
    const GilScope gil;
    py::dict operands;
    for (const auto& input : node.inputs) {
      if (input->op != seed_op()) {
        operands[py::int_((input->pending() ? leaves_.size() : 0) + input->index)] =
            py::cast(HostTensor{to_storage(value(*input))});
      }
    }
    const auto& outs = node.output_spec->outs;
    const py::list arrays = python_fallback_(node.index, operands);
    Values found;
    for (size_t i = 0; i < outs.size(); ++i) {
      const py::object array = arrays[i];
      found.push_back(array.is_none() ? Tensor() : crop_result(array, outs[i]));
    }
    return found;
  }

  // Converts an array, which may be padded, to a tensor of this shape and dtype.
  Tensor crop_result(const py::object& array, const Shape& shape) const {
    array.attr("block_until_ready")();
    const auto sizes = array.attr("shape").cast<std::vector<int64_t>>();
    const Tensor padded = tensor_from_array(array, storage_dtypes_[static_cast<size_t>(shape.dtype)], sizes);
    return padded.reshape({-1}).narrow(0, 0, shape.elements()).reshape(shape.sizes).to(shape.dtype);
  }

  // Returns a contiguous tensor in the storage dtype.
  Tensor to_storage(const Tensor& tensor) const {
    const Tensor plain = tensor.resolve_conj().resolve_neg();
    return plain.to(storage_dtypes_[static_cast<size_t>(plain.scalar_type())]).contiguous();
  }

  // Lets Ctrl-C interrupt the interpreter between two kernels.
  void check_signals() {
    const auto now = Clock::now();
    if (now - last_look_ < std::chrono::milliseconds(50)) {
      return;
    }
    last_look_ = now;
    const GilScope gil;
    if (PyErr_CheckSignals() != 0) {
      throw py::error_already_set();
    }
  }

  std::vector<Tensor> results() {
    std::unordered_set<c10::StorageImpl*> storages;
    for (const Tensor& leaf : leaves_) {
      storages.insert(leaf.storage().unsafeGetStorageImpl());
    }
    std::vector<Tensor> found;
    for (const auto& root : graph_.roots) {
      Tensor result = to_storage(value(*root));
      const bool owns_storage = result.storage().nbytes() == result.nbytes();
      if (!storages.insert(result.storage().unsafeGetStorageImpl()).second || !owns_storage) {
        result = result.clone(at::MemoryFormat::Contiguous);
      }
      found.push_back(std::move(result));
    }
    return found;
  }

  const Graph& graph_;
  const std::vector<Tensor> leaves_;
  const Dtypes& storage_dtypes_;
  const py::function& python_fallback_;
  std::vector<Values> values_;
  std::vector<uint32_t> uses_;  // remaining uses of each value
  const at::ScalarType default_dtype_ = c10::get_default_dtype_as_scalartype();
  Clock::time_point last_look_ = Clock::now();
  size_t freed_ = 0;  // bytes, since the last malloc_trim()
};

Dtypes dtypes_of(const py::list& storage_dtypes) {
  Dtypes found;
  for (size_t i = 0; i < found.size(); ++i) {
    found[i] = static_cast<at::ScalarType>(i);
  }
  for (const py::handle& pair : storage_dtypes) {
    const auto [dtype, storage_dtype] = pair.cast<std::pair<int, int>>();
    found.at(dtype) = static_cast<at::ScalarType>(storage_dtype);
  }
  return found;
}

}  // namespace

py::list interpret(const Graph& graph, const py::list& arrays, const py::list& storage_dtypes,
                   const py::function& call_python_fallback) {
  const Dtypes dtypes = dtypes_of(storage_dtypes);
  std::vector<Tensor> leaves, found;
  {
    const CpuDispatchScope kernels;
    for (size_t i = 0; i < graph.leaves.size(); ++i) {
      const Shape& shape = graph.leaves[i]->shape();
      const at::ScalarType storage_dtype = dtypes[static_cast<size_t>(shape.dtype)];
      leaves.push_back(
          tensor_from_array(py::reinterpret_borrow<py::object>(arrays[i]), storage_dtype, shape.sizes).to(shape.dtype));
    }
    const PythonReentryScope reentry;
    py::gil_scoped_release release;
    found = GraphInterpreter(graph, std::move(leaves), dtypes, call_python_fallback).run();
  }
  py::list results;
  for (Tensor& result : found) {
    results.append(py::cast(HostTensor{std::move(result)}));
  }
  return results;
}

void bind_graph_interpreter(py::module_& m) {
  py::register_exception<NotInterpretable>(m, "NotInterpretable", PyExc_RuntimeError);
  m.def("interpret", &interpret, py::arg("graph"), py::arg("arrays"), py::arg("stored"), py::arg("apart"));
}

}  // namespace torch_xla
