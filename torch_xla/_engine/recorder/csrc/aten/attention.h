// scaled_dot_product_attention as one op of the graph, not the eight of torch's decomposition.
#pragma once

#include <ATen/core/stack.h>

#include <optional>

#include "ir/node.h"

namespace torch_xla {

// Registers kernels above and below autograd. Calls that the fused op does not support use torch's decomposition.
void register_attention();

// Computes a node of the fused op, or of its gradient, with torch's CPU kernels; nullopt for other ops, or with
// dropout.
using AttentionResults = std::optional<c10::SmallVector<at::Tensor, 1>>;
AttentionResults attention_on_cpu(const Op& op, const OutputSpec& output_spec, const torch::jit::Stack& arguments);

}  // namespace torch_xla
