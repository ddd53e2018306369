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

// A function of jax that can be called: what its Nodes have in common, taken from the first one.
class Callee {
 public:
  Callee(int64_t function, std::string name) : function_(function), name_(std::move(name)) {}

  // As the dispatcher would record it: with a look at the meta function, once.
  void prepare(at::TensorList tensors) {
    static const Op* op = find_op("torch_xla::jax_call");
    node_ = record_node(*op, {c10::IValue(tensors.vec()), c10::IValue(function_), c10::IValue(name_)});
    node_->inputs.clear();
    op->recorded->add(-1);  // it is no call
  }
  bool prepared() const { return node_ != nullptr; }

  // The results of a call with tensors of the shapes and dtypes that it was prepared for.
  std::vector<at::Tensor> operator()(at::TensorList tensors) const {
    flush_if_over_limit();
    auto node = c10::make_intrusive<Node>();
    node->op = node_->op;
    node->key = node_->key;
    node->default_dtype = node_->default_dtype;
    node->attrs = node_->attrs;
    node->signature = node_->signature;
    node->origin = current_origin();
    node->inputs.reserve(tensors.size());
    for (const at::Tensor& t : tensors) {
      XlaTensor* x = maybe_xla(t);
      TORCH_CHECK(x != nullptr, name_, ": expected xla tensors, found ", t.toString(), " on ", t.device());
      node->inputs.push_back(x->value());
      TORCH_CHECK(x->device_index() == xla_index(tensors[0]), node->op->name,
                  ": expected all tensors on one device, but found ", tensors[0].device(), " and ", t.device());
    }
    node->device = static_cast<int8_t>(xla_index(tensors[0]));
    node->op->recorded->add();
    std::vector<at::Tensor> results;
    const auto count = static_cast<uint32_t>(node->signature->outs.size());
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

// What a tensor must be for a plan to be followed.
struct ArgumentSpec {
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
  bool requires_grad;

  bool holds(const at::Tensor& t) const {
    return maybe_xla(t) != nullptr && t.scalar_type() == dtype && t.sizes() == at::IntArrayRef(sizes) &&
           t.requires_grad() == requires_grad && !compat::isFwGradDefined(t);
  }
};

// The backward function where some results have a gradient, and others not. Never changes once it is in the list.
struct Backward {
  std::vector<bool> given;
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
        facts_(std::move(facts)),
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

  // Without the first `leading` tensors of a call, if these are still to be made.
  bool matches(const variable_list& tensors, size_t leading = 0) const {
    if (leading + tensors.size() != facts_.size() || c10::impl::TorchDispatchModeTLS::any_modes_set()) {
      return false;
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!facts_[leading + i].holds(tensors[i])) {
        return false;
      }
    }
    return true;
  }

  // The results, then what is kept. GIL held.
  std::vector<at::Tensor> run(at::TensorList tensors) {
    if (C10_UNLIKELY(!forward_.prepared())) {
      forward_.prepare(tensors);
    }
    return forward_(tensors);
  }

  // The gradients of all inputs, some of which have none. Without the GIL.
  variable_list gradients(const variable_list& kept, const variable_list& of_results) {
    std::vector<bool> given;
    variable_list arguments(kept);
    for (size_t i = 0; i < results_; ++i) {
      if (graded_[i]) {
        given.push_back(of_results[i].defined());
        if (given.back()) {
          arguments.push_back(of_results[i]);
        }
      }
    }
    variable_list found(facts_.size() + 1);  // one for the plan itself
    if (arguments.size() > kept.size()) {
      auto results = backward(given, arguments)(arguments);
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
  const Callee& backward(const std::vector<bool>& given, at::TensorList arguments) {
    for (Backward* b = backwards_.load(std::memory_order_acquire); b != nullptr; b = b->next) {
      if (b->given == given) {
        return b->callee;
      }
    }
    auto made = std::make_unique<Backward>(Backward{given, ask(given), nullptr});
    made->callee.prepare(arguments);
    made->next = backwards_.load();
    while (!backwards_.compare_exchange_weak(made->next, made.get(), std::memory_order_release)) {
    }
    return made.release()->callee;
  }

  Callee ask(const std::vector<bool>& given) const {
    const GilScope inside;
    const auto found = py::reinterpret_borrow<py::object>(build_)(py::tuple(py::cast(given)));
    const auto [function, name] = found.cast<std::pair<int64_t, std::string>>();
    return {function, name};
  }

  std::string name_;
  Callee forward_;
  size_t results_;
  std::vector<ArgumentSpec> facts_;
  std::vector<uint32_t> saved_;   // the inputs that backward reads
  std::vector<uint32_t> inputs_;  // those that have a gradient
  std::vector<bool> graded_;      // of each result, whether it has one
  PyObject* build_;               // given -> (function, name)
  std::atomic<Backward*> backwards_{nullptr};
};
using PlanPtr = c10::intrusive_ptr<CallPlan>;

struct PureCall : compat::Function<PureCall> {
  static variable_list forward(compat::AutogradContext* ctx, at::TensorList tensors, const PlanPtr& plan) {
    variable_list results = plan->run(tensors);
    variable_list kept;
    for (const uint32_t i : plan->saved()) {
      kept.push_back(tensors[i]);
    }
    const auto first_kept = results.begin() + static_cast<std::ptrdiff_t>(plan->results());
    kept.insert(kept.end(), first_kept, results.end());
    results.erase(first_kept, results.end());
    variable_list ungraded;
    for (size_t i = 0; i < results.size(); ++i) {
      if (!plan->is_graded(i)) {
        ungraded.push_back(results[i]);
      }
    }
    ctx->mark_non_differentiable(ungraded);
    ctx->set_materialize_grads(false);
    ctx->save_for_backward(std::move(kept));
    ctx->saved_data["plan"] = c10::IValue::make_capsule(plan);
    return results;
  }

  static variable_list backward(compat::AutogradContext* ctx, const variable_list& gradients) {
    const auto plan = c10::static_intrusive_pointer_cast<CallPlan>(ctx->saved_data["plan"].toCapsule());
    TORCH_CHECK(!at::GradMode::is_enabled(), plan->name(),
                " has a gradient of the first order only, and this backward pass was asked for a gradient that has "
                "one itself (create_graph=True)");
    return plan->gradients(ctx->get_saved_variables(), gradients);
  }
};

// None where the tensors are others than those that the plan was made for.
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

std::vector<ArgumentSpec> facts_of(const std::vector<std::tuple<int, std::vector<int64_t>, bool>>& given) {
  std::vector<ArgumentSpec> out;
  for (const auto& [dtype, sizes, requires_grad] : given) {
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
             TORCH_CHECK(!facts.empty() && graded.size() == results, "a plan of no tensors, or of other results");
             return c10::make_intrusive<CallPlan>(function, name, results, facts_of(facts), saved, inputs, graded,
                                                  build);
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
