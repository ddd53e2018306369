// torch's composite kernels of nn.LSTM, nn.GRU and nn.RNN record a few ops per time step, so that compiling takes longer
// for longer sequences. The kernels here record torch_xla::rnn_layer per layer and direction, which is compiled into one
// loop (lowering/rules/recurrent.py); its gradient is a loop, too.
//
//   call                                             kernel
//   xla tensors of one float dtype                   here
//   forward-mode autograd, torch.func, fake tensors  torch's composite kernel
//   an empty sequence or batch, other dtypes         torch's composite kernel
//   gradient of a gradient                           unrolled_layer() below, differentiated by autograd
//
// A packed sequence is padded to [steps, batch, width], and its output is packed again. Dropout between layers is torch's
// op. Under autocast all operands are cast, as torch does for cuDNN.
#include "aten/recurrent.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include <string>
#include <vector>

#include "compat/torch_internal.h"
#include "dispatch/library.h"
#include "tensor/xla_tensor.h"

namespace torch_xla {
namespace {

using at::Tensor;
using at::TensorList;
using compat::variable_list;

// What describes one layer and direction; `lengths` (int64[batch]) is undefined if all sequences have all steps.
struct Layer {
  std::string mode;  // lstm, gru, rnn_tanh or rnn_relu
  bool reverse = false;
  Tensor lengths;
};

size_t state_count(const std::string& mode) { return mode == "lstm" ? 2 : 1; }

variable_list slice(const variable_list& all, size_t begin, size_t size) {
  const auto first = all.begin() + static_cast<std::ptrdiff_t>(begin);
  return {first, first + static_cast<std::ptrdiff_t>(size)};
}

variable_list call_layer(const Tensor& input, const variable_list& state, const variable_list& weights,
                         const Layer& layer) {
  using Schema =
      variable_list(const Tensor&, TensorList, TensorList, c10::string_view, bool, const std::optional<Tensor>&);
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("torch_xla::rnn_layer", "").typed<Schema>();
  const std::optional<Tensor> lengths = layer.lengths.defined() ? std::optional(layer.lengths) : std::nullopt;
  return op.call(input, state, weights, layer.mode, layer.reverse, lengths);
}

variable_list call_layer_backward(const variable_list& grads, const Tensor& input, const variable_list& state,
                                  const variable_list& weights, const Tensor& output, const variable_list& residuals,
                                  const Layer& layer) {
  using Schema = variable_list(TensorList, const Tensor&, TensorList, TensorList, const Tensor&, TensorList,
                               c10::string_view, bool, const std::optional<Tensor>&);
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("torch_xla::rnn_layer_backward", "").typed<Schema>();
  const std::optional<Tensor> lengths = layer.lengths.defined() ? std::optional(layer.lengths) : std::nullopt;
  return op.call(grads, input, state, weights, output, residuals, layer.mode, layer.reverse, lengths);
}

// One step of a cell, of differentiable ops. `gates` and `hidden` are the projections of the input and of the state.
variable_list unrolled_cell(const std::string& mode, const Tensor& gates, const Tensor& hidden,
                            const variable_list& state) {
  if (mode == "lstm") {
    const auto part = (gates + hidden).chunk(4, -1);
    const Tensor c = part[1].sigmoid() * state[1] + part[0].sigmoid() * part[2].tanh();
    return {part[3].sigmoid() * c.tanh(), c};
  }
  if (mode == "gru") {
    const auto a = gates.chunk(3, -1), b = hidden.chunk(3, -1);
    const Tensor z = (a[1] + b[1]).sigmoid(), n = (a[2] + (a[0] + b[0]).sigmoid() * b[2]).tanh();
    return {(state[0] - n) * z + n};
  }
  return {mode == "rnn_tanh" ? (gates + hidden).tanh() : (gates + hidden).relu()};
}

// The same as torch_xla::rnn_layer without its residuals, of differentiable ops: for the gradient of a gradient.
variable_list unrolled_layer(const Tensor& input, variable_list state, const variable_list& weights,
                             const Layer& layer) {
  const int64_t steps = input.size(0);
  const bool projects = weights.size() % 2 != 0, has_biases = weights.size() >= 4;
  const Tensor none, &b_ih = has_biases ? weights[2] : none, &b_hh = has_biases ? weights[3] : none;
  const Tensor gates = at::linear(input, weights[0], b_ih);
  variable_list outputs(static_cast<size_t>(steps));
  for (int64_t i = 0; i < steps; ++i) {
    const int64_t t = layer.reverse ? steps - 1 - i : i;
    variable_list next = unrolled_cell(layer.mode, gates[t], at::linear(state[0], weights[1], b_hh), state);
    if (projects) {
      next[0] = at::linear(next[0], weights.back());
    }
    if (layer.lengths.defined()) {
      const Tensor active = (layer.lengths > t).unsqueeze(-1);
      for (size_t k = 0; k < next.size(); ++k) {
        next[k] = at::where(active, next[k], state[k]);
      }
    }
    state = std::move(next);
    outputs[static_cast<size_t>(t)] = state[0];
  }
  state.insert(state.begin(), at::stack(outputs));
  return state;
}

variable_list differentiable_gradients(const variable_list& grads, const variable_list& operands, const Layer& layer) {
  const size_t states = state_count(layer.mode);
  variable_list leaves;
  for (const Tensor& t : operands) {
    leaves.push_back(t.requires_grad() ? t : t.detach().requires_grad_());
  }
  const variable_list results =
      unrolled_layer(leaves[0], slice(leaves, 1, states), slice(leaves, 1 + states, leaves.size() - 1 - states), layer);
  return compat::grad(results, leaves, grads, /*retain_graph=*/true, /*create_graph=*/true, /*allow_unused=*/true);
}

struct DifferentiableLayer : compat::Function<DifferentiableLayer> {
  // `operands`: the input, the state, the weights.
  static variable_list forward(compat::AutogradContext* ctx, TensorList operands, const Layer& layer) {
    const size_t states = state_count(layer.mode);
    const variable_list all(operands.begin(), operands.end());
    variable_list results =
        call_layer(all[0], slice(all, 1, states), slice(all, 1 + states, all.size() - 1 - states), layer);
    const variable_list residuals = slice(results, 1 + states, results.size() - 1 - states);
    results.resize(1 + states);
    variable_list saved = all;
    saved.push_back(results[0]);
    saved.insert(saved.end(), residuals.begin(), residuals.end());
    saved.push_back(layer.lengths);
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["operands"] = static_cast<int64_t>(all.size());
    ctx->saved_data["mode"] = layer.mode;
    ctx->saved_data["reverse"] = layer.reverse;
    return results;
  }

  static variable_list backward(compat::AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const Layer layer{ctx->saved_data["mode"].toStringRef(), ctx->saved_data["reverse"].toBool(), saved.back()};
    const size_t states = state_count(layer.mode), n = static_cast<size_t>(ctx->saved_data["operands"].toInt());
    const variable_list operands = slice(saved, 0, n);
    variable_list results = at::GradMode::is_enabled()
                                ? differentiable_gradients(grads, operands, layer)
                                : call_layer_backward(grads, operands[0], slice(operands, 1, states),
                                                      slice(operands, 1 + states, n - 1 - states), saved[n],
                                                      slice(saved, n + 1, saved.size() - n - 2), layer);
    results.emplace_back();  // of the layer, which has no gradient
    return results;
  }
};

variable_list run_layer(const Tensor& input, const variable_list& state, const variable_list& weights,
                        const Layer& layer) {
  variable_list operands{input};
  operands.insert(operands.end(), state.begin(), state.end());
  operands.insert(operands.end(), weights.begin(), weights.end());
  const bool needs_gradient =
      at::GradMode::is_enabled() &&
      std::any_of(operands.begin(), operands.end(), [](const Tensor& t) { return t.requires_grad(); });
  if (needs_gradient) {
    return DifferentiableLayer::apply(TensorList(operands), layer);
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return call_layer(input, state, weights, layer);
}

// The arguments of nn.LSTM, nn.GRU and nn.RNN that all of torch's overloads share.
struct Network {
  std::string mode;
  bool has_biases;
  int64_t layers;
  double dropout;
  bool train;
  bool bidirectional;
};

// Runs all layers. `x` is [steps, batch, width]; `state` has one [layers * directions, batch, width] per state. Returns
// the output and the last states.
variable_list run_layers(const Network& net, Tensor x, const variable_list& state, const variable_list& params,
                         const Tensor& lengths) {
  const size_t directions = net.bidirectional ? 2 : 1;
  const size_t rows = static_cast<size_t>(net.layers) * directions, per_row = params.size() / rows;
  std::vector<variable_list> last(state.size());
  for (size_t layer = 0; layer < static_cast<size_t>(net.layers); ++layer) {
    variable_list outputs;
    for (size_t direction = 0; direction < directions; ++direction) {
      const size_t row = layer * directions + direction;
      variable_list first;
      for (const Tensor& s : state) {
        first.push_back(s.select(0, static_cast<int64_t>(row)));
      }
      const variable_list results =
          run_layer(x, first, slice(params, row * per_row, per_row), Layer{net.mode, direction == 1, lengths});
      outputs.push_back(results[0]);
      for (size_t i = 0; i < state.size(); ++i) {
        last[i].push_back(results[1 + i]);
      }
    }
    x = directions == 1 ? outputs[0] : at::cat(outputs, -1);
    if (net.dropout != 0 && net.train && layer + 1 < static_cast<size_t>(net.layers)) {
      x = at::dropout(x, net.dropout, true);
    }
  }
  variable_list results{x};
  for (const variable_list& of_state : last) {
    results.push_back(at::stack(of_state));
  }
  return results;
}

bool is_autocast_enabled() { return at::autocast::is_autocast_enabled(at::kXLA); }

// Returns whether the kernels here support a call: see the table at the top.
bool can_use_loop(const Tensor& input, const variable_list& state, TensorList params) {
  const auto dtype = input.scalar_type();
  if (!at::isFloatingType(dtype) || input.numel() == 0) {
    return false;
  }
  const auto suits = [&](const Tensor& t) {
    return maybe_xla(t) != nullptr && t.layout() == at::kStrided && !compat::isFwGradDefined(t) &&
           (t.scalar_type() == dtype || (is_autocast_enabled() && at::isFloatingType(t.scalar_type())));
  };
  return suits(input) && !params.empty() && std::all_of(state.begin(), state.end(), suits) &&
         std::all_of(params.begin(), params.end(), suits);
}

Tensor cast_operand(const Tensor& t) {
  return is_autocast_enabled() ? at::autocast::cached_cast(at::autocast::get_autocast_dtype(at::kXLA), t, at::kXLA) : t;
}

variable_list cast_operands(TensorList list) {
  variable_list all;
  for (const Tensor& t : list) {
    all.push_back(cast_operand(t));
  }
  return all;
}

// Raises torch's error if the hidden sizes of operands do not match.
void check_sizes(const Network& net, const Tensor& input, const variable_list& state, const variable_list& params) {
  const size_t rows = static_cast<size_t>(net.layers) * (net.bidirectional ? 2 : 1);
  TORCH_CHECK(net.layers > 0 && params.size() % rows == 0 && params.size() / rows >= 2, net.mode, ": expected ",
              net.has_biases ? 4 : 2, " parameters per layer and direction, but got ", params.size());
  TORCH_CHECK(input.dim() == 3, net.mode, ": expected a 3-d input, but got ", input.sizes());
  TORCH_CHECK(input.size(2) == params[0].size(1), "input.size(-1) must be equal to input_size. Expected ",
              params[0].size(1), ", got ", input.size(2));
  for (const Tensor& s : state) {
    TORCH_CHECK(s.dim() == 3 && s.size(0) == static_cast<int64_t>(rows) && s.size(1) == input.size(1), net.mode,
                ": expected hidden size [", rows, ", ", input.size(1), ", ...], got ", s.sizes());
  }
}

variable_list run_padded(const Network& net, const Tensor& input, const variable_list& state, TensorList params,
                         bool batch_first) {
  const variable_list weights = cast_operands(params), first = cast_operands(state);
  Tensor x = cast_operand(input);
  x = batch_first ? x.transpose(0, 1) : x;
  check_sizes(net, x, first, weights);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  variable_list results = run_layers(net, x, first, weights, Tensor());
  if (batch_first) {
    results[0] = results[0].transpose(0, 1);
  }
  return results;
}

// The rows of a packed sequence in a padded one, and the inverse.
struct Packing {
  Tensor to_padded;  // int64[steps * batch]: row of the packed data; 0 where a sequence has ended
  Tensor to_packed;  // int64[rows]: row of the padded data
  Tensor lengths;    // int64[batch]; undefined if all are equal
  int64_t steps, batch;
};

Packing make_packing(const Tensor& batch_sizes, at::Device device) {
  const Tensor sizes = batch_sizes.contiguous();
  const int64_t* size = sizes.const_data_ptr<int64_t>();
  const int64_t steps = sizes.numel(), batch = size[0];
  std::vector<int64_t> to_padded(static_cast<size_t>(steps * batch), 0), to_packed, lengths(static_cast<size_t>(batch));
  for (int64_t t = 0; t < steps; ++t) {
    TORCH_CHECK(size[t] > 0 && size[t] <= (t == 0 ? batch : size[t - 1]),
                "batch_sizes of a packed sequence must be positive and sorted in decreasing order");
    for (int64_t b = 0; b < size[t]; ++b) {
      to_padded[static_cast<size_t>(t * batch + b)] = static_cast<int64_t>(to_packed.size());
      to_packed.push_back(t * batch + b);
      lengths[static_cast<size_t>(b)] = t + 1;
    }
  }
  const auto upload = [&](const std::vector<int64_t>& values) { return at::tensor(values, at::kLong).to(device); };
  const bool is_ragged = lengths.back() != steps;
  return {upload(to_padded), upload(to_packed), is_ragged ? upload(lengths) : Tensor(), steps, batch};
}

variable_list run_packed(const Network& net, const Tensor& data, const Tensor& batch_sizes, const variable_list& state,
                         TensorList params) {
  TORCH_CHECK(batch_sizes.device().is_cpu() && batch_sizes.scalar_type() == at::kLong,
              "batch_sizes tensor should be on CPU, but got: ", batch_sizes.device());
  const Packing packing = make_packing(batch_sizes, data.device());
  TORCH_CHECK(data.dim() == 2 && data.size(0) == packing.to_packed.numel(), net.mode, ": expected packed data of ",
              packing.to_packed.numel(), " rows, but got ", data.sizes());
  const variable_list weights = cast_operands(params), first = cast_operands(state);
  const Tensor rows = cast_operand(data);
  const Tensor x = rows.index_select(0, packing.to_padded).reshape({packing.steps, packing.batch, rows.size(1)});
  check_sizes(net, x, first, weights);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  variable_list results = run_layers(net, x, first, weights, packing.lengths);
  results[0] = results[0].flatten(0, 1).index_select(0, packing.to_packed);
  return results;
}

using Two = std::tuple<Tensor, Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;

Three lstm_input(const Tensor& input, TensorList hx, TensorList params, bool has_biases, int64_t num_layers,
                 double dropout, bool train, bool bidirectional, bool batch_first) {
  const variable_list state = hx.vec();
  if (state.size() != 2 || !can_use_loop(input, state, params)) {
    return compat::lstm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first);
  }
  const auto r =
      run_padded({"lstm", has_biases, num_layers, dropout, train, bidirectional}, input, state, params, batch_first);
  return {r[0], r[1], r[2]};
}

Three lstm_data(const Tensor& data, const Tensor& batch_sizes, TensorList hx, TensorList params, bool has_biases,
                int64_t num_layers, double dropout, bool train, bool bidirectional) {
  const variable_list state = hx.vec();
  if (state.size() != 2 || !can_use_loop(data, state, params)) {
    return compat::lstm(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional);
  }
  const auto r =
      run_packed({"lstm", has_biases, num_layers, dropout, train, bidirectional}, data, batch_sizes, state, params);
  return {r[0], r[1], r[2]};
}

using InputKernel = Two (*)(const Tensor&, const Tensor&, TensorList, bool, int64_t, double, bool, bool, bool);
using DataKernel = Two (*)(const Tensor&, const Tensor&, const Tensor&, TensorList, bool, int64_t, double, bool, bool);

constexpr char kGru[] = "gru", kTanh[] = "rnn_tanh", kRelu[] = "rnn_relu";

template <const char* mode, InputKernel composite>
Two rnn_input(const Tensor& input, const Tensor& hx, TensorList params, bool has_biases, int64_t num_layers,
              double dropout, bool train, bool bidirectional, bool batch_first) {
  if (!can_use_loop(input, {hx}, params)) {
    return composite(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first);
  }
  const auto r =
      run_padded({mode, has_biases, num_layers, dropout, train, bidirectional}, input, {hx}, params, batch_first);
  return {r[0], r[1]};
}

template <const char* mode, DataKernel composite>
Two rnn_data(const Tensor& data, const Tensor& batch_sizes, const Tensor& hx, TensorList params, bool has_biases,
             int64_t num_layers, double dropout, bool train, bool bidirectional) {
  if (!can_use_loop(data, {hx}, params)) {
    return composite(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional);
  }
  const auto r =
      run_packed({mode, has_biases, num_layers, dropout, train, bidirectional}, data, batch_sizes, {hx}, params);
  return {r[0], r[1]};
}

}  // namespace

void register_recurrent() {
  for (const auto key : {c10::DispatchKey::XLA, c10::DispatchKey::AutogradXLA}) {
    auto& both = library("aten", key);
    both.impl("lstm.input", &lstm_input);
    both.impl("lstm.data", &lstm_data);
    both.impl("gru.input", &rnn_input<kGru, compat::gru>);
    both.impl("gru.data", &rnn_data<kGru, compat::gru>);
    both.impl("rnn_tanh.input", &rnn_input<kTanh, compat::rnn_tanh>);
    both.impl("rnn_tanh.data", &rnn_data<kTanh, compat::rnn_tanh>);
    both.impl("rnn_relu.input", &rnn_input<kRelu, compat::rnn_relu>);
    both.impl("rnn_relu.data", &rnn_data<kRelu, compat::rnn_relu>);
  }
}

}  // namespace torch_xla
