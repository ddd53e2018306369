"""A variational autoencoder with Adam; its noise comes from the CPU, so that all devices draw the same."""

import torch
import torch.nn.functional as F
from torch import nn


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.mean, self.log_variance = nn.Linear(64, 32), nn.Linear(32, 4), nn.Linear(32, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 64))

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden = F.relu(self.encoder(x))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        return torch.sigmoid(self.decoder(mean + noise * torch.exp(0.5 * log_variance))), mean, log_variance


def main() -> None:
    torch.manual_seed(1)
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    model = Vae().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    images = torch.rand(5, 16, 64)
    for batch in images:
        noise = torch.randn(16, 4)
        output, mean, log_variance = model(batch.to(device), noise.to(device))
        divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
        loss = F.binary_cross_entropy(output, batch.to(device), reduction="sum") + divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.3f}")
    if device.type != "cpu":
        torch.accelerator.synchronize()
    print("device", device.type)


main()
