// Ops that torch takes apart, or differentiates, in ways that do not suit xla, done in others.
#pragma once

namespace torch_xla {

void register_composites();

}  // namespace torch_xla
