// Replaces torch's decompositions and gradients that sync or access storages.
#pragma once

namespace torch_xla {

void register_composites();

}  // namespace torch_xla
