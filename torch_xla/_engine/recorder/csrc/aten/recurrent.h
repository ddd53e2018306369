// nn.LSTM, nn.GRU and nn.RNN: one recorded op per layer and direction.
#pragma once

namespace torch_xla {

void register_recurrent();

}  // namespace torch_xla
