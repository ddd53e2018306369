// torch.autocast("xla"): the precision policy of each op.
#pragma once

namespace torch_xla {

// Registers an AutocastXLA kernel for each op of torch's lists; all others fall through.
void register_autocast();

}  // namespace torch_xla
