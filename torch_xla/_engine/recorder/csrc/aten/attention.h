// scaled_dot_product_attention as one op of the graph instead of torch's eight.
#pragma once

#include <ATen/core/stack.h>

#include <optional>

#include "ir/node.h"

namespace torch_xla {

// Kernels above and below autograd. What does not fit the one op goes torch's way, through plain products.
void register_attention();

// What a node of that op, or of its gradient, computes, by torch's kernels for the CPU; none where it is another op, or
// has dropout.
using AttentionResults = std::optional<c10::SmallVector<at::Tensor, 1>>;
AttentionResults attention_on_cpu(const Op& op, const OutputSpec& promised, const torch::jit::Stack& arguments);

}  // namespace torch_xla
