"""Gaussian processes, Bayesian optimization and variational inference: programs of many small tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.clients import checks
from tests.clients.recompilations import Messages, losses_of
from torch_xla.debug import recompilation


def test_gpytorch(messages: Messages) -> None:
    """An exact GP: its hyperparameters learn, and it predicts means and variances. A step is one program."""
    gpytorch = checks.library("gpytorch")
    torch.manual_seed(0)
    x = torch.linspace(0, 1, 24)
    y = torch.sin(6 * x) + 0.1 * torch.randn(24)

    class Regression(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
            super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def fit(device: str) -> tuple[Any, list[float], int, list[torch.Tensor]]:
        model = Regression(x.to(device), y.to(device)).to(device).train()
        objective = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

        def step(number: int) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = -objective(model(*model.train_inputs), model.train_targets)
            loss.backward()
            optimizer.step()
            return loss.detach()

        losses, graphs = losses_of(step, 20)
        assert device == "cpu" or messages() == []
        model.eval()
        with torch.no_grad():
            found = model.likelihood(model(torch.linspace(0, 1.2, 13, device=device)))
            return model, losses, graphs, [found.mean, found.variance, *found.confidence_region()]

    with checks.on_xla():
        model, losses, graphs, predictions = fit("xla")
    oracle, expected_losses, _, expected = fit("cpu")
    checks.assert_lives_on_xla(model)
    checks.assert_close(losses, expected_losses)
    checks.assert_same_state(model, oracle, rtol=1e-3, atol=1e-4)
    checks.assert_close(predictions, expected, rtol=1e-3, atol=1e-3)
    assert losses[-1] < losses[0] - 0.5 and graphs == 0


def test_botorch(messages: Messages) -> None:
    """A surrogate is fitted, and three acquisition functions are optimized, with scipy's L-BFGS-B on the host.

    botorch decides by values what it computes, so that its graphs differ: one message of each kind says so.
    """
    checks.library("botorch")
    from botorch.acquisition import LogExpectedImprovement, UpperConfidenceBound, qLogExpectedImprovement
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from botorch.optim import optimize_acqf
    from botorch.sampling import SobolQMCNormalSampler
    from gpytorch.mlls import ExactMarginalLogLikelihood

    torch.manual_seed(0)
    x = torch.rand(12, 2, dtype=torch.float64)
    y = torch.sin(6 * x[:, :1]) + torch.cos(4 * x[:, 1:])
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)

    def optimize(device: str) -> tuple[Any, list[tuple[torch.Tensor, torch.Tensor]]]:
        model = SingleTaskGP(x.to(device), y.to(device))
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        best, sampler = y.max().to(device), SobolQMCNormalSampler(torch.Size([32]), seed=1)
        functions = [
            (LogExpectedImprovement(model, best_f=best), 1),
            (UpperConfidenceBound(model, beta=0.1), 1),
            (qLogExpectedImprovement(model, best_f=best, sampler=sampler), 2),
        ]
        options = {"seed": 1, "maxiter": 20}
        torch.manual_seed(1)
        return model, [
            optimize_acqf(function, bounds.to(device), points, num_restarts=2, raw_samples=8, options=options)
            for function, points in functions
        ]

    with checks.on_xla():
        model, found = optimize("xla")
    oracle, expected = optimize("cpu")
    checks.assert_same_state(model, oracle, rtol=1e-4, atol=1e-4)
    for (point, value), (expected_point, expected_value) in zip(found, expected, strict=True):
        assert {point.device.type, value.device.type} == {"xla"}
        checks.assert_close([value], [expected_value], rtol=1e-4)
        checks.assert_close([point.sort(0).values], [expected_point.sort(0).values], rtol=1e-2, atol=1e-2)
    logged = messages()
    assert logged and recompilation.count() > len(logged)
    optimize("xla")
    assert messages() == logged


@pytest.mark.parametrize("validates", [True, False], ids=["validating", "not validating"])
def test_pyro(validates: bool, messages: Messages) -> None:
    """SVI of a mixture: a Normal guide of the means, a Categorical one of the classes. A number changes in every step.

    The checks of ``validation_enabled`` read values and decide with them.
    """
    pyro = checks.library("pyro")
    from pyro import distributions as dist
    from pyro import poutine
    from pyro.infer import SVI, TraceEnum_ELBO

    torch.manual_seed(0)
    rows = torch.cat([torch.randn(12) - 2, torch.randn(12) + 3])
    draws = torch.randn(30, 2)

    def infer(device: str) -> tuple[list[float], int, list[torch.Tensor]]:
        data, drawn = rows.to(device), draws.to(device)

        class Drawn(dist.Normal):  # type: ignore[misc]
            """A Normal with the same draws on each device."""

            def rsample(self, sample_shape: torch.Size = torch.Size()) -> torch.Tensor:  # noqa: B008
                return self.loc + self.scale * drawn[number]  # type: ignore[no-any-return]

        def model() -> None:
            with pyro.plate("components", 2):
                means = pyro.sample("means", dist.Normal(torch.zeros(2, device=device), 5.0))
            with pyro.plate("rows", len(data)), poutine.scale(scale=1.0 - number / 60):
                kind = pyro.sample("kind", dist.Categorical(torch.full((2,), 0.5, device=device)))
                pyro.sample("found", dist.Normal(means[kind], 1.0), obs=data)

        def guide() -> None:
            loc = pyro.param("loc", torch.tensor([-1.0, 1.0], device=device))
            scale = pyro.param("scale", torch.full((2,), 0.3, device=device), dist.constraints.positive)
            weights = pyro.param("weights", torch.full((len(data), 2), 0.5, device=device), dist.constraints.simplex)
            with pyro.plate("components", 2):
                pyro.sample("means", Drawn(loc, scale))
            with pyro.plate("rows", len(data)), poutine.scale(scale=1.0 - number / 60):
                pyro.sample("kind", dist.Categorical(weights), infer={"enumerate": "parallel"})

        number = 0
        pyro.clear_param_store()
        svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), TraceEnum_ELBO(max_plate_nesting=1))

        def step(at: int) -> float:
            nonlocal number
            number = at
            return svi.step()  # type: ignore[no-any-return]

        losses, graphs = losses_of(step, 30)
        return losses, graphs, [pyro.param(name).detach() for name in ("loc", "scale", "weights")]

    with pyro.validation_enabled(validates):
        with checks.on_xla():
            losses, graphs, parameters = infer("xla")
            infer("xla")
            logged = messages()
            infer("xla")
        expected_losses, _, expected = infer("cpu")
    assert messages() == logged and {p.device.type for p in parameters} == {"xla"}
    checks.assert_close(losses, expected_losses, rtol=1e-4)
    checks.assert_close(parameters, expected, rtol=1e-3, atol=1e-4)
    assert losses[-1] < losses[0] / 2 and graphs == 0
