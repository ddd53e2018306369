// linear as one operation, where torch takes it apart.
#pragma once

namespace torch_xla {

void register_linear();

}  // namespace torch_xla
