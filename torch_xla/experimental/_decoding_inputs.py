"""The tensors of one text generation, and the functions of them that a CapturedDecoder captures."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torch_xla.experimental._token_choice import TokenChoice

#: What a step updates in place, by name; "cache": (keys, values, length) of each layer.
Tensors = dict[str, Any]
_SEPARATE = frozenset({"attention_mask", "position_ids", "past_key_values"})


class DecodingInputs:
    """Inputs of a model of transformers during one call of ``generate``.

    Owns the tensors of the call. A step that is captured takes them as arguments, and holds a cache without tensors, so
    that it serves calls with other caches of the same size.

    Args:
      model: the model.
      ids: the prompts on its device.
      kwargs: the other inputs of the model, as ``generate`` prepares them.
    """

    def __init__(self, model: Any, ids: Tensor, kwargs: dict[str, Any]) -> None:
        self._model, self._ids, self._kwargs = model, ids, kwargs
        others = {key: value for key, value in kwargs.items() if key not in _SEPARATE}
        self._plain = {key: value for key, value in others.items() if not isinstance(value, Tensor)}
        self._others = {key: value for key, value in others.items() if isinstance(value, Tensor)}
        self._layers = kwargs["past_key_values"].layers
        self.tensors: Tensors = {}

    @property
    def description(self) -> Hashable:
        """What two calls must have in common, besides tensors."""
        cache = [(layer.max_cache_len, layer.keys.shape, layer.keys.dtype) for layer in self._layers]
        return repr(sorted(self._plain.items())), tuple(sorted(self._others)), tuple(sorted(self.tensors)), tuple(cache)

    def prefill(self) -> Tensor:
        """Run the model on the prompts; return the scores of the next token, float32 of shape (batch, words)."""
        options = {"is_first_iteration": True, "next_sequence_length": self._uncached()}
        inputs = self._model.prepare_inputs_for_generation(self._ids, **options, **self._kwargs)
        logits: Tensor = self._model(**inputs, return_dict=True).logits
        return logits[:, -1].to(dtype=torch.float32, copy=True)

    def _uncached(self) -> int | None:
        """Return how many of the ids are not in the cache; None if it is new."""
        past = self._kwargs["past_key_values"].get_seq_length()
        return None if isinstance(past, int) and past == 0 else self._ids.shape[1] - int(past)

    def begin(self, token: Tensor) -> None:
        """Make the tensors that the steps update; ``token``: the first tokens after the prompts."""
        layers = self._layers
        batch, size = len(token), layers[0].max_cache_len
        found: Tensors = {"cache": [(layer.keys, layer.values, layer.cumulative_length) for layer in layers]}
        found["token"] = token.clone()  # a view has no buffer that a replay could overwrite
        found["unfinished"] = torch.ones_like(token)
        found["tokens"] = torch.zeros((batch, size + 1), dtype=token.dtype, device=token.device)
        found["count"] = torch.zeros(1, dtype=torch.int64, device=token.device)
        if self._kwargs.get("position_ids") is not None:
            found["position_ids"] = self._kwargs["position_ids"][..., -1:].clone()
        mask = self._kwargs.get("attention_mask")
        if mask is not None:  # later positions are hidden by the causal mask
            found["attention_mask"] = torch.nn.functional.pad(mask, (0, size - mask.shape[1]), value=1)
        found["others"] = self._others
        self.tensors = found

    def make_forward(self) -> Callable[[Tensors], Tensor]:
        """Return the function tensors -> scores of the next token, which updates the cache and the positions."""
        cache = copy.copy(self._kwargs["past_key_values"])
        cache.layers = [copy.copy(layer) for layer in cache.layers]
        with _bound(cache, None):  # holds no tensor
            pass
        return partial(_run_forward, self._model, cache, self._plain)

    def make_step(self, choice: TokenChoice, processors: Sequence[Any]) -> Callable[[Tensors], Tensor]:
        """Return the function tensors -> whether a sequence goes on, which appends a token."""
        # The tensors of the processors are named, so that a replay finds them.
        return partial(_run_step, self.make_forward(), choice, list(processors), list(choice.tensors()))


@contextmanager
def _bound(cache: Any, tensors: Sequence[tuple[Tensor, Tensor, Tensor]] | None) -> Iterator[None]:
    """Let the layers of a cache have these tensors in the block, and none after it."""
    try:
        for layer, (keys, values, length) in zip(cache.layers, tensors or (), strict=False):
            layer.keys, layer.values, layer.cumulative_length = keys, values, length
        yield
    finally:
        for layer in cache.layers:
            layer.keys = layer.values = layer.cumulative_length = None


def _run_forward(model: Any, cache: Any, plain: dict[str, Any], tensors: Tensors) -> Tensor:
    if "position_ids" in tensors:
        tensors["position_ids"].add_(1)
    given = {key: tensors[key] for key in ("position_ids", "attention_mask") if key in tensors}
    with _bound(cache, tensors["cache"]):
        inputs = model.prepare_inputs_for_generation(
            tensors["token"][:, None],
            next_sequence_length=1,
            past_key_values=cache,
            **{"attention_mask": None, **given, **plain, **tensors["others"]},
        )
        logits: Tensor = model(**inputs, return_dict=True).logits
    return logits[:, -1].to(dtype=torch.float32, copy=True)


def _run_step(
    forward: Callable[[Tensors], Tensor], choice: TokenChoice, processors: Sequence[Any], held: Any, tensors: Tensors
) -> Tensor:
    tensors["token"].copy_(choice.choose(forward(tensors), processors))
    return append_token(choice, tensors)


def append_token(choice: TokenChoice, tensors: Tensors) -> Tensor:
    """Append ``tensors["token"]`` to the tokens. Return whether a sequence goes on."""
    goes_on = choice.end(tensors["token"], tensors["unfinished"])
    tensors["tokens"].index_copy_(1, tensors["count"], tensors["token"][:, None])
    tensors["count"].add_(1)
    return goes_on
