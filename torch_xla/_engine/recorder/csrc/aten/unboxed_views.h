// Unboxed kernels of the views that every model takes thousands of: the boxed path spends more on packing their
// arguments than on recording them.
#pragma once

namespace torch_xla {

// After the ops have been registered as recorded ones; those that are not are left alone.
void register_hot_views();

}  // namespace torch_xla
