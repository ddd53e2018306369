// linear as one op, without torch's decomposition.
#pragma once

namespace torch_xla {

void register_linear();

}  // namespace torch_xla
