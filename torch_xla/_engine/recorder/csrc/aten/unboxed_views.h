// Unboxed kernels of the most frequent views: packing their arguments on the boxed path takes longer than recording
// them.
#pragma once

namespace torch_xla {

// Call it after the ops are registered as recorded; others are skipped.
void register_unboxed_views();

}  // namespace torch_xla
