"""ZeRO-1: every replica has the full model and a shard of the optimizer state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from torch_xla.core import xla_model as xm
from torch_xla.distributed.fsdp._sharded_parameter import ShardGroup, reduce_scatter_dim0, shard_of

__all__ = ["ZeroRedundancyOptimizer"]


class ZeroRedundancyOptimizer(Optimizer):
    """An optimizer whose state is sharded over the replicas.

    ``step()`` reduce-scatters and averages the gradients, updates this replica's shard of each parameter with
    ``optimizer_class``, and all-gathers the result. Call it instead of xm.optimizer_step, which averages, too.

    Args:
      params: parameters on xla, or parameter groups.
      optimizer_class: the optimizer of the shards; receives ``defaults``. Its updates must be elementwise.
      optimizer_dtype: dtype of shards and state; default: float32.
      grad_clipping: scale gradients so that their norm is at most ``max_norm`` (default 1.0).
      sharding_groups: shard within groups of replicas; gradients are averaged over all replicas.
      grad_norm_groups: groups of replicas over which the norm is computed; default: all.
      lazy_init: do not create shards before ``init_zero()``, which must be called before the first use.
      use_grad_acc_hook: accumulate gradients in float32 between steps.
      save_master_weights: include the shards of parameters in ``state_dict``.
      pin_layout, bucket_cap_mb_all_gather, bucket_cap_mb_reduce_scatter, higher_cc_precision: no effect: XLA combines
        collectives itself, and gradients are averaged in ``optimizer_dtype``.

    Examples:
      >>> import torch
      >>> import torch_xla
      >>> from torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer
      >>> model = torch.nn.Linear(2, 1).to("xla")
      >>> optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
      >>> model(torch.ones(4, 2, device="xla")).sum().backward()
      >>> optimizer.step()
      >>> torch_xla.sync()
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: type[Optimizer],
        optimizer_dtype: torch.dtype | None = None,
        grad_clipping: bool = True,
        max_norm: float | None = None,
        pin_layout: bool = True,
        sharding_groups: list[list[int]] | None = None,
        grad_norm_groups: list[list[int]] | None = None,
        lazy_init: bool = False,
        bucket_cap_mb_all_gather: int = 0,
        bucket_cap_mb_reduce_scatter: int = 0,
        use_grad_acc_hook: bool = False,
        save_master_weights: bool = False,
        higher_cc_precision: bool = False,
        **defaults: Any,
    ) -> None:
        super().__init__(params, defaults)
        self.optimizer_class, self.optimizer_dtype = optimizer_class, optimizer_dtype or torch.float32
        self.grad_clipping, self.max_norm = grad_clipping, 1.0 if max_norm is None else max_norm
        self.grad_norm_groups, self.save_master_weights = grad_norm_groups, save_master_weights
        self._options, self._sharding_groups = defaults, sharding_groups
        self._grad_norm: torch.Tensor | None = None
        self._accumulated: dict[torch.Tensor, torch.Tensor] = {}
        self._hooks: list[Any] = []
        self._shares: list[list[torch.Tensor]] = []
        self._versions: list[int] = []  # versions of the parameters when they were last sharded or gathered
        self.base_optimizer: Optimizer | None = None
        if use_grad_acc_hook:
            self._hooks = [
                p.register_post_accumulate_grad_hook(self._accumulate) for p in self._params() if p.requires_grad
            ]
        if not lazy_init:
            self.init_zero()

    def init_zero(self) -> None:
        """Create this replica's shards and the optimizer that updates them."""
        self._group = ShardGroup.of(self._sharding_groups, None, None)
        self._shares = [[self._share(p.detach()) for p in group["params"]] for group in self.param_groups]
        self._versions = self._current_versions()
        groups = [
            {**{k: v for k, v in group.items() if k != "params"}, "params": shares}
            for group, shares in zip(self.param_groups, self._shares, strict=True)
        ]
        self.base_optimizer = self.optimizer_class(groups, **self._options)
        for mine, base in zip(self.param_groups, self.base_optimizer.param_groups, strict=True):
            mine.update({k: v for k, v in base.items() if k != "params"})

    def _params(self) -> list[torch.Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _share(self, value: torch.Tensor) -> torch.Tensor:
        return shard_of(value.reshape(-1).to(self.optimizer_dtype), self._group)

    def _base(self) -> Optimizer:
        if self.base_optimizer is None:
            raise RuntimeError("ZeroRedundancyOptimizer: lazy_init=True requires init_zero() before the first use")
        return self.base_optimizer

    @torch.no_grad()
    def _accumulate(self, p: torch.Tensor) -> None:
        assert p.grad is not None
        kept = self._accumulated.get(p)
        self._accumulated[p] = p.grad.float() if kept is None else kept + p.grad.float()
        p.grad = None

    def remove_hooks(self) -> None:
        """Remove the hooks; gradients then accumulate in the parameters, as usual."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    @property
    def grad_norm(self) -> torch.Tensor | None:
        """The norm of the last step's gradients before clipping; None before the first step, or without clipping."""
        return self._grad_norm

    @property
    def sharding_groups(self) -> list[list[int]] | None:
        """Groups of replicas that share the state; None: all. Setting it creates new shards."""
        return self._sharding_groups

    @sharding_groups.setter
    def sharding_groups(self, new_sharding_groups: list[list[int]] | None) -> None:
        self._sharding_groups = new_sharding_groups
        if self.base_optimizer is not None:
            self.init_zero()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Average gradients, update shards, gather parameters. Returns the result of ``closure``, called first.

        Args:
          closure: a function that computes the loss and its gradients.
          kwargs: further arguments of the optimizer's step().
        """
        base, loss = self._base(), None
        self._take_written_parameters()
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group, shares in zip(self.param_groups, self._shares, strict=True):
            for p, share in zip(group["params"], shares, strict=True):
                grad = self._accumulated.get(p, p.grad)
                share.grad = None if grad is None else self._averaged(grad)
        if self.grad_clipping:
            self._clip()
        for mine, theirs in zip(self.param_groups, base.param_groups, strict=True):
            theirs.update({k: v for k, v in mine.items() if k != "params"})  # schedulers change our groups
        base.step(**kwargs)
        self._accumulated = {}
        self.allgather_weights_and_update_full_parameter()
        return loss

    def _averaged(self, grad: torch.Tensor) -> torch.Tensor:
        from torch_xla.runtime import world_size

        everyone, flat = world_size(), grad.detach().reshape(-1).to(self.optimizer_dtype)
        if self._group.size < everyone:
            flat = xm.all_reduce("sum", flat, 1.0 / everyone)
            return shard_of(flat, self._group)
        missing = -flat.numel() % self._group.size
        filled = torch.cat([flat, flat.new_zeros(missing)]) if missing else flat
        return reduce_scatter_dim0(filled, self._group, 1.0 / everyone)

    def _clip(self) -> None:
        grads = [share.grad for shares in self._shares for share in shares if share.grad is not None]
        if not grads:
            return
        square = torch.stack([torch.linalg.vector_norm(g.float()) for g in grads]).square().sum()
        groups = self._group.groups if self.grad_norm_groups is None else self.grad_norm_groups
        total = xm.all_reduce("sum", square, groups=groups).sqrt()
        self._grad_norm = total
        scale = torch.clamp(self.max_norm / (total + 1e-6), max=1.0)
        for g in grads:
            g.mul_(scale.to(g.dtype))

    @torch.no_grad()
    def allgather_weights_and_update_full_parameter(self, sharding_scheme: Any = None) -> None:
        """Write the gathered shards of the replicas into the parameters.

        Args:
          sharding_scheme: accepted for compatibility.
        """
        for group, shares in zip(self.param_groups, self._shares, strict=True):
            for p, share in zip(group["params"], shares, strict=True):
                whole = xm.all_gather(share.to(p.dtype), 0, groups=self._group.groups)
                p.copy_(whole[: p.numel()].view(p.shape))
        self._versions = self._current_versions()

    def _current_versions(self) -> list[int]:
        return [p._version for p in self._params()]

    @torch.no_grad()
    def _take_written_parameters(self, everything: bool = False) -> None:
        """Shard again the parameters that were written since they were sharded."""
        flat = [share for shares in self._shares for share in shares]
        for p, share, before in zip(self._params(), flat, self._versions, strict=True):
            if not everything and p._version == before:
                continue
            # On the CPU, where the cast rounds: XLA may elide it in a comparison. If the parameter equals the rounded
            # shard, the shard is retained, since it has more digits.
            mine, kept = self._share(p.detach()).cpu(), share.detach().cpu()
            share.copy_(torch.where(kept.to(p.dtype) == mine.to(p.dtype), kept, mine))
        self._versions = self._current_versions()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """See torch.optim.Optimizer.

        Args:
          set_to_none: remove the gradients instead of filling them with zeros.
        """
        super().zero_grad(set_to_none)
        self._accumulated = {}

    def get_shape_info(self) -> dict[int, torch.Size]:
        """Return the shape of each parameter, by its number in state_dict."""
        return {number: p.shape for number, p in enumerate(self._params())}

    def state_dict(self) -> dict[str, Any]:
        """Return this replica's shard of the state; each replica must save its own."""
        saved: dict[str, Any] = super().state_dict()
        saved |= {"base_state": self._base().state_dict()["state"], "shape_info": self.get_shape_info()}
        if self.save_master_weights:
            flat = [share for shares in self._shares for share in shares]
            saved["sharded_master_weights"] = {number: share.detach() for number, share in enumerate(flat)}
        return saved

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the result of this replica's state_dict.

        If it has no master weights, the shards are taken from the current parameters: load the model before or after.

        Args:
          state_dict: the state.
        """
        rest = dict(state_dict)
        state, weights = rest.pop("base_state"), rest.pop("sharded_master_weights", None)
        rest.pop("shape_info", None)
        super().load_state_dict(rest)
        base = self._base()
        base.load_state_dict({**base.state_dict(), "state": state})
        if weights is not None:
            for number, share in enumerate(share for shares in self._shares for share in shares):
                share.copy_(weights[number].to(share.device))
            self.allgather_weights_and_update_full_parameter()
        else:
            self._take_written_parameters(everything=True)
