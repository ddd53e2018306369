// scaled_dot_product_attention as one op of the graph instead of torch's eight.
#pragma once

namespace torch_xla {

// Kernels above and below autograd. What does not fit the one op goes torch's way, through plain products.
void register_attention();

}  // namespace torch_xla
