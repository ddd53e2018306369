#include "graph/call_plan.h"

#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <pybind11/stl.h>

#include <atomic>
#include <optional>

#include "compat/python_internal.h"
#include "compat/torch_internal.h"
#include "dispatch/graph_size_limit.h"
#include "dispatch/record.h"
#include "ir/source_location.h"
#include "runtime/python_hooks.h"
#include "tensor/xla_tensor.h"

namespace py = pybind11;
namespace torch_xla {
namespace {

using compat::variable_list;

// A callable jax function: the common fields of its Nodes, taken from the first one.
class Callee {
 public:
  Callee(int64_t function, std::string name) : function_(function), name_(std::move(name)) {}

  // Records one call through the dispatcher's path, which runs the meta function.
  void prepare(at::TensorList tensors) {
    static const OpPointer op("torch_xla::jax_call");
    node_ = record_node(*op, {c10::IValue(tensors.vec()), c10::IValue(function_), c10::IValue(name_)});
    node_->inputs.clear();
    op->recorded->add(-1);  // it is not a call
  }
  bool prepared() const { return node_ != nullptr; }

  // Records a call with tensors of the shapes and dtypes that it was prepared for, and returns its results.
  std::vector<at::Tensor> operator()(at::TensorList tensors) const {
    flush_if_over_limit();
    auto node = c10::make_intrusive<Node>();
    node->op = node_->op;
    node->key = node_->key;
    node->default_dtype = node_->default_dtype;
    node->attrs = node_->attrs;
    node->output_spec = node_->output_spec;
    node->origin = current_origin();
    node->inputs.reserve(tensors.size());
    for (const at::Tensor& t : tensors) {
      XlaTensor* x = maybe_xla(t);
      TORCH_CHECK(x != nullptr, name_, ": expected xla tensors, got ", t.toString(), " on ", t.device());
      node->inputs.push_back(x->value());
      TORCH_CHECK(x->device_index() == xla_index(tensors[0]), node->op->name,
                  ": expected all tensors on one device, but found ", tensors[0].device(), " and ", t.device());
    }
    node->device = static_cast<int8_t>(xla_index(tensors[0]));
    node->op->recorded->add();
    std::vector<at::Tensor> results;
    const auto count = static_cast<uint32_t>(node->output_spec->outs.size());
    results.reserve(count);
    for (uint32_t i = 0; i < count; ++i) {
      results.push_back(make_tensor(getitem_node(node, i)));
    }
    count_pending(node->device);
    return results;
  }

 private:
  static int xla_index(const at::Tensor& t) { return t.device().index(); }

  int64_t function_;
  std::string name_;
  NodePtr node_;
};

// What a plan requires of one argument.
struct ArgumentSpec {
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
  bool requires_grad;

  bool matches(const at::Tensor& t) const {
    return maybe_xla(t) != nullptr && t.scalar_type() == dtype && t.sizes() == at::IntArrayRef(sizes) &&
           t.requires_grad() == requires_grad && !compat::isFwGradDefined(t);
  }
};

// The backward function for one set of results that have a gradient. Immutable once it is in the list.
struct Backward {
  std::vector<bool> has_gradient_mask;
  Callee callee;
  Backward* next;
};

class CallPlan final : public torch::CustomClassHolder {
 public:
  CallPlan(int64_t function, std::string name, size_t results, std::vector<ArgumentSpec> facts,
           std::vector<uint32_t> saved, std::vector<uint32_t> inputs, std::vector<bool> graded, py::object build)
      : name_(name),
        forward_(function, std::move(name)),
        results_(results),
        specs_(std::move(facts)),
        saved_(std::move(saved)),
        inputs_(std::move(inputs)),
        graded_(std::move(graded)),
        build_(build.release().ptr()) {}
  ~CallPlan() override {
    release_reference(build_);
    for (Backward* b = backwards_.load(); b != nullptr;) {
      delete std::exchange(b, b->next);
    }
  }

  // Returns whether the plan applies to these tensors; `leading` first arguments of the call are not made yet.
  bool matches(const variable_list& tensors, size_t leading = 0) const {
    if (leading + tensors.size() != specs_.size() || c10::impl::TorchDispatchModeTLS::any_modes_set()) {
      return false;
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!specs_[leading + i].matches(tensors[i])) {
        return false;
      }
    }
    return true;
  }

  // Records the forward call. Returns the results, then the values saved for backward. Requires the GIL.
  std::vector<at::Tensor> run(at::TensorList tensors) {
    if (C10_UNLIKELY(!forward_.prepared())) {
      forward_.prepare(tensors);
    }
    return forward_(tensors);
  }

  // Records the backward call. Returns the gradients of all inputs, undefined where there is none. Releases the GIL.
  variable_list gradients(const variable_list& saved_values, const variable_list& of_results) {
    std::vector<bool> has_gradient_mask;
    variable_list arguments(saved_values);
    for (size_t i = 0; i < results_; ++i) {
      if (graded_[i]) {
        has_gradient_mask.push_back(of_results[i].defined());
        if (has_gradient_mask.back()) {
          arguments.push_back(of_results[i]);
        }
      }
    }
    variable_list found(specs_.size() + 1);  // one more for the plan itself
    if (arguments.size() > saved_values.size()) {
      auto results = backward(has_gradient_mask, arguments)(arguments);
      for (size_t i = 0; i < inputs_.size(); ++i) {
        found[inputs_[i]] = std::move(results[i]);
      }
    }
    return found;
  }

  const std::string& name() const { return name_; }
  size_t results() const { return results_; }
  const std::vector<uint32_t>& saved() const { return saved_; }
  bool is_graded(size_t result) const { return graded_[result]; }
  bool has_gradient() const { return !inputs_.empty(); }

 private:
  const Callee& backward(const std::vector<bool>& has_gradient_mask, at::TensorList arguments) {
    for (Backward* b = backwards_.load(std::memory_order_acquire); b != nullptr; b = b->next) {
      if (b->has_gradient_mask == has_gradient_mask) {
        return b->callee;
      }
    }
    auto created =
        std::make_unique<Backward>(Backward{has_gradient_mask, request_backward(has_gradient_mask), nullptr});
    created->callee.prepare(arguments);
    created->next = backwards_.load();
    while (!backwards_.compare_exchange_weak(created->next, created.get(), std::memory_order_release)) {
    }
    return created.release()->callee;
  }

  Callee request_backward(const std::vector<bool>& has_gradient_mask) const {
    const GilScope gil;
    const auto found = py::reinterpret_borrow<py::object>(build_)(py::tuple(py::cast(has_gradient_mask)));
    const auto [function, name] = found.cast<std::pair<int64_t, std::string>>();
    return {function, name};
  }

  std::string name_;
  Callee forward_;
  size_t results_;
  std::vector<ArgumentSpec> specs_;
  std::vector<uint32_t> saved_;   // indices of the inputs saved for backward
  std::vector<uint32_t> inputs_;  // indices of the inputs that have a gradient
  std::vector<bool> graded_;      // whether each result has a gradient
  PyObject* build_;               // given -> (function, name)
  std::atomic<Backward*> backwards_{nullptr};
};
using PlanPtr = c10::intrusive_ptr<CallPlan>;

struct PureCall : compat::Function<PureCall> {
  static variable_list forward(compat::AutogradContext* ctx, at::TensorList tensors, const PlanPtr& plan) {
    variable_list results = plan->run(tensors);
    variable_list saved_values;
    for (const uint32_t i : plan->saved()) {
      saved_values.push_back(tensors[i]);
    }
    const auto first_saved = results.begin() + static_cast<std::ptrdiff_t>(plan->results());
    saved_values.insert(saved_values.end(), first_saved, results.end());
    results.erase(first_saved, results.end());
    variable_list ungraded;
    for (size_t i = 0; i < results.size(); ++i) {
      if (!plan->is_graded(i)) {
        ungraded.push_back(results[i]);
      }
    }
    ctx->mark_non_differentiable(ungraded);
    ctx->set_materialize_grads(false);
    ctx->save_for_backward(std::move(saved_values));
    ctx->saved_data["plan"] = c10::IValue::make_capsule(plan);
    return results;
  }

  static variable_list backward(compat::AutogradContext* ctx, const variable_list& gradients) {
    const auto plan = c10::static_intrusive_pointer_cast<CallPlan>(ctx->saved_data["plan"].toCapsule());
    TORCH_CHECK(
        !at::GradMode::is_enabled(), plan->name(),
        " has a gradient of the first order only; second-order gradients (create_graph=True) are not supported");
    return plan->gradients(ctx->get_saved_variables(), gradients);
  }
};

// Records a call; nullopt if the plan does not apply to these tensors.
std::optional<variable_list> call(const PlanPtr& plan, const variable_list& tensors) {
  if (!plan->matches(tensors)) {
    return std::nullopt;
  }
  if (plan->has_gradient()) {
    return PureCall::apply(at::TensorList(tensors), plan);
  }
  variable_list results = plan->run(tensors);
  results.resize(plan->results());
  return results;
}

std::vector<ArgumentSpec> make_argument_specs(const std::vector<std::tuple<int, std::vector<int64_t>, bool>>& tuples) {
  std::vector<ArgumentSpec> out;
  for (const auto& [dtype, sizes, requires_grad] : tuples) {
    out.push_back({static_cast<at::ScalarType>(dtype), sizes, requires_grad});
  }
  return out;
}

}  // namespace

void bind_calls(py::module_& m) {
  py::class_<CallPlan, PlanPtr>(m, "Plan")
      .def(py::init([](int64_t function, const std::string& name, size_t results,
                       const std::vector<std::tuple<int, std::vector<int64_t>, bool>>& facts,
                       const std::vector<uint32_t>& saved, const std::vector<uint32_t>& inputs,
                       const std::vector<bool>& graded, const py::object& build) {
             TORCH_CHECK(!facts.empty() && graded.size() == results, "a plan requires tensors and one flag per result");
             return c10::make_intrusive<CallPlan>(function, name, results, make_argument_specs(facts), saved, inputs,
                                                  graded, build);
           }),
           py::arg("function"), py::arg("name"), py::arg("results"), py::arg("facts"), py::arg("saved"),
           py::arg("inputs"), py::arg("graded"), py::arg("build"))
      .def(
          "fits",
          [](const PlanPtr& plan, const variable_list& tensors, size_t leading) {
            return plan->matches(tensors, leading);
          },
          py::arg("tensors"), py::arg("leading") = 0)
      .def("call", &call);
}

}  // namespace torch_xla
