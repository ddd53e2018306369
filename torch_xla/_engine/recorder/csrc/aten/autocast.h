// torch.autocast("xla"): which ops compute in which precision inside it.
#pragma once

namespace torch_xla {

// Gives each op of torch's lists a kernel for the key AutocastXLA; all others fall through.
void register_autocast();

}  // namespace torch_xla
