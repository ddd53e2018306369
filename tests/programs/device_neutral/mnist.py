"""A CNN on synthetic digits: SGD, a schedule, evaluation. Prints the loss of each step."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3)
        self.fc1, self.fc2 = nn.Linear(16 * 12 * 12, 32), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        return F.log_softmax(self.fc2(F.relu(self.fc1(torch.flatten(x, 1)))), dim=1)


def main() -> None:
    torch.manual_seed(1)
    available = torch.accelerator.is_available()
    device = torch.accelerator.current_accelerator() if available else torch.device("cpu")
    data = torch.utils.data.TensorDataset(torch.randn(96, 1, 28, 28), torch.randint(10, (96,)))
    options = {"num_workers": 0, "pin_memory": available}
    loader = torch.utils.data.DataLoader(data, batch_size=32, **options)
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    for _ in range(2):
        model.train()
        for images, labels in loader:
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            optimizer.zero_grad()
            loss = F.nll_loss(model(images), labels)
            loss.backward()
            optimizer.step()
            print(f"{loss.item():.4f}")
        scheduler.step()
        model.eval()
        with torch.no_grad():
            correct = sum((model(x.to(device)).argmax(1) == y.to(device)).sum().item() for x, y in loader)
        print(f"correct {correct}")
    print("device", device.type)


main()
