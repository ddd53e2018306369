"""Libraries whose programs are small and many: differential equations, reinforcement learning, attribution, vision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torch_xla
from tests.clients import checks
from tests.clients.recompilations import Messages, losses_of

Tensors = Sequence[torch.Tensor]


class Dynamics(nn.Module):
    """The right side of a differential equation of two variables."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.layers(y**3) * (1 + t)  # type: ignore[no-any-return]


#: Solver -> the function, its method, and whether all steps have equal graphs. A solver of fixed steps reads the times;
#: an adaptive one also an error in each of its steps, and decides with it. torch.unique finds equal times.
SOLVERS = {
    "rk4": ("odeint", "rk4", True), "dopri5": ("odeint", "dopri5", False), "adjoint": ("odeint_adjoint", "rk4", True),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:torch_xla. torch.unique:UserWarning")
@pytest.mark.parametrize("name", SOLVERS)
def test_torchdiffeq(name: str, messages: Messages) -> None:
    """A neural ODE is trained. Recompilations are explained once, not in each step."""
    torchdiffeq = checks.library("torchdiffeq")
    function, method, has_equal_graphs = SOLVERS[name]
    times = torch.linspace(0, 1, 6)
    start = torch.tensor([[2.0, 0.0], [1.0, -0.5]])
    turn = torch.stack([torch.stack([t.cos(), t.sin(), -t.sin(), t.cos()]).reshape(2, 2) for t in 2 * times])

    def fit(device: str) -> tuple[nn.Module, list[float], int]:
        torch.manual_seed(0)
        model = Dynamics().to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        goal, y, t = (start @ turn).to(device), start.to(device), times.to(device)

        def step(_: int) -> torch.Tensor:
            optimizer.zero_grad()
            path = getattr(torchdiffeq, function)(model, y, t, method=method)
            loss: torch.Tensor = (path - goal).abs().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return model, *losses_of(step, 8)

    with checks.on_xla(on_cpu=["aten::_unique2"] if method == "dopri5" else []):
        model, losses, graphs = fit("xla")
        logged = messages()
        fit("xla")
    oracle, expected, _ = fit("cpu")
    checks.assert_lives_on_xla(model)
    checks.assert_close(losses, expected, rtol=1e-3)
    checks.assert_same_state(model, oracle, rtol=1e-2, atol=1e-3)
    assert losses[-1] < losses[0] and len(logged) <= 2 and messages() == logged
    assert graphs == 0 or not has_equal_graphs


def test_stable_baselines(messages: Messages) -> None:
    """DQN: its exploration and its replay buffer draw with numpy, so that both devices see the same transitions."""
    baselines = checks.library("stable_baselines3")
    gymnasium: Any = checks.library("gymnasium")

    class Corridor(gymnasium.Env):  # type: ignore[misc, name-defined]
        """Five places; one step to the right is a reward at the last one."""

        observation_space = gymnasium.spaces.Box(0, 1, (5,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.place = 0
            return self.observe(), {}

        def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.place = max(0, self.place + (1 if action else -1))
            return self.observe(), float(self.place == 4), self.place == 4, False, {}

        def observe(self) -> Any:
            return np.eye(5, dtype=np.float32)[self.place]

    def train(device: str) -> tuple[Any, list[int]]:
        model = baselines.DQN(
            "MlpPolicy", Corridor(), learning_starts=32, learning_rate=1e-2, batch_size=16, target_update_interval=40,
            exploration_fraction=0.5, policy_kwargs={"net_arch": [16]}, seed=0, device=device,
        )  # fmt: skip
        model.learn(600, callback=lambda *_: torch_xla.sync() or True)
        places = np.eye(5, dtype=np.float32)
        return model, [int(model.predict(place, deterministic=True)[0]) for place in places[:4]]

    with checks.on_xla():
        model, actions = train("xla")
        logged = messages()
        train("xla")
    oracle, expected = train("cpu")
    checks.assert_lives_on_xla(model.policy)
    checks.assert_same_state(model.policy, oracle.policy, rtol=1e-2, atol=1e-3)
    assert actions == expected and model._n_updates == oracle._n_updates > 100 and messages() == logged


ATTRIBUTIONS: dict[str, Callable[[Any, Any, torch.Tensor, torch.Tensor], Any]] = {
    "integrated gradients": lambda c, m, x, y: c.IntegratedGradients(m).attribute(
        x, target=y, n_steps=8, return_convergence_delta=True
    ),
    "saliency": lambda c, m, x, y: c.Saliency(m).attribute(x, target=y),
    "deconvolution": lambda c, m, x, y: c.Deconvolution(m).attribute(x, target=y),
    "DeepLIFT": lambda c, m, x, y: c.DeepLift(m).attribute(x, target=y),
    "occlusion": lambda c, m, x, y: c.Occlusion(m).attribute(x, (1, 4, 4), strides=(1, 2, 2), target=y),
    "feature ablation": lambda c, m, x, y: c.FeatureAblation(m).attribute(
        x, target=y, feature_mask=(torch.arange(64, device=x.device) // 16).reshape(1, 1, 8, 8)
    ),
    "layer conductance": lambda c, m, x, y: c.LayerConductance(m, m[2]).attribute(x, target=y, n_steps=8),
    "GradCAM": lambda c, m, x, y: c.LayerGradCam(m, m[2]).attribute(x, target=y),
    "noise tunnel": lambda c, m, x, y: c.NoiseTunnel(c.Saliency(m)).attribute(x, target=y, nt_samples=3, stdevs=0.0),
}


@pytest.mark.filterwarnings("ignore:torch_xla. torch.unique:UserWarning")
@pytest.mark.parametrize("name", ATTRIBUTIONS)
def test_captum(name: str) -> None:
    """Attributions of a small convolutional network are those of the CPU."""
    captum = checks.library("captum.attr")
    x, y = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2, 1, 2])

    def attribute(device: str) -> Any:
        torch.manual_seed(0)
        layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)]
        model = nn.Sequential(*layers).to(device).eval()
        return ATTRIBUTIONS[name](captum, model, x.to(device), y.to(device))

    with checks.on_xla(on_cpu=["aten::_unique2"] if name == "feature ablation" else []):
        found = torch.utils._pytree.tree_leaves(attribute("xla"))
        assert {t.device.type for t in found} == {"xla"}
        moved = [t.detach().cpu() for t in found]
    checks.assert_close(moved, torch.utils._pytree.tree_leaves(attribute("cpu")), rtol=1e-4, atol=1e-5)


IMAGES: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "blur": lambda k, x: k.filters.gaussian_blur2d(x, (5, 5), (1.5, 1.5)),
    "median blur": lambda k, x: k.filters.median_blur(x, (3, 3)),
    "sobel": lambda k, x: k.filters.sobel(x),
    "canny": lambda k, x: k.filters.canny(x, 0.1, 0.3)[0],
    "hsv": lambda k, x: k.color.hsv_to_rgb(k.color.rgb_to_hsv(x)),
    "lab": lambda k, x: k.color.rgb_to_lab(x),
    "rotate": lambda k, x: k.geometry.transform.rotate(x, torch.tensor([30.0, -10.0], device=x.device)),
    "resize": lambda k, x: k.geometry.transform.resize(x, (12, 20), antialias=True),
    "warp": lambda k, x: k.geometry.transform.warp_perspective(
        x, torch.tensor([[1.1, 0.1, 2.0], [0.0, 0.9, 1.0], [1e-3, 0.0, 1.0]], device=x.device).expand(2, 3, 3), (16, 16)
    ),
    "morphology": lambda k, x: k.morphology.opening(x, torch.ones(3, 3, device=x.device)),
    "equalize": lambda k, x: k.enhance.equalize_clahe(x, grid_size=(4, 4)),
    "corners": lambda k, x: k.feature.harris_response(x.mean(1, keepdim=True)),
    "similarity": lambda k, x: k.losses.ssim_loss(x, x.flip(0), 5),
    "total variation": lambda k, x: k.losses.total_variation(x),
}
#: Of integers and sorted values: they have no useful gradient.
WITHOUT_GRADIENT = {"canny", "equalize"}


@pytest.mark.parametrize("name", IMAGES)
def test_kornia(name: str) -> None:
    """Values of an operation on two images, and its gradient, are those of the CPU."""
    kornia = checks.library("kornia")
    images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))

    def run(device: str) -> list[torch.Tensor]:
        x = images.to(device).requires_grad_(name not in WITHOUT_GRADIENT)
        y = IMAGES[name](kornia, x)
        if x.requires_grad:
            (y * torch.linspace(-1, 1, y.numel(), device=device).reshape(y.shape)).sum().backward()
        return [y.detach(), *([] if x.grad is None else [x.grad])]

    with checks.on_xla():
        found = run("xla")
        assert {t.device.type for t in found} == {"xla"}
        moved = [t.cpu() for t in found]
    checks.assert_close(moved, run("cpu"), rtol=1e-3, atol=1e-4)
