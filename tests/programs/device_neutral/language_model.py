"""A word language model: LSTM with a hidden state that is carried on and detached, gradient clipping."""

import torch
from torch import nn


class WordModel(nn.Module):
    def __init__(self, words: int = 40, width: int = 16) -> None:
        super().__init__()
        self.encoder, self.rnn, self.decoder = (
            nn.Embedding(words, width),
            nn.LSTM(width, width, 2),
            nn.Linear(width, words),
        )

    def forward(
        self, tokens: torch.Tensor, hidden: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        output, hidden = self.rnn(self.encoder(tokens), hidden)
        return self.decoder(output), hidden


def main() -> None:
    torch.manual_seed(1)
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    model = WordModel().to(device)
    corpus = torch.randint(40, (61, 4)).to(device)
    hidden = (torch.zeros(2, 4, 16, device=device), torch.zeros(2, 4, 16, device=device))
    for start in range(0, 60, 12):
        tokens, targets = corpus[start : start + 12], corpus[start + 1 : start + 13]
        hidden = (hidden[0].detach(), hidden[1].detach())
        output, hidden = model(tokens, hidden)
        loss = nn.functional.cross_entropy(output.view(-1, 40), targets.reshape(-1))
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(parameter.grad, alpha=-5.0)
        print(f"{loss.item():.4f}")
    print("device", device.type)


main()
