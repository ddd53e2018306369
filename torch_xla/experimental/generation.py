"""Text generation with transformers whose decoding step is captured: ``generate(..., custom_generate=decoder)``.

    generate() prepares ids, cache, processors, criteria
        │
        ▼
    prefill, one program per prompt length ──► a token ──► captured step ──► a token ──► ... ──► ids
                                                               │
        forward, processors, choice, end of sequences ─────────┘   whether all have ended is read one step late

A logits processor or stopping criterion that reads the ids of all tokens, whose number grows, is not in the captured
step: then only the forward is, and one warning names the processor.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

import torch_xla
from torch_xla._engine.base import messages
from torch_xla._engine.base.lru_cache import LruCache
from torch_xla.experimental._decoding_inputs import DecodingInputs, append_token
from torch_xla.experimental._token_choice import TokenChoice, choose_token, find_reader_of_ids, pad_id

__all__ = ["CapturedDecoder"]

_MOST_STEPS = 8


class CapturedDecoder:
    """Decode with a captured step: pass an instance as ``custom_generate`` to ``generate`` of transformers.

    The model is a decoder, and the cache is static. The tokens are those of ``generate`` without ``custom_generate``.
    Use one instance for all calls: it owns the captured steps, which the first call makes.

    Args:
      model: a model of transformers on an xla device.

    Examples:
      >>> decoder = CapturedDecoder(model)  # doctest: +SKIP
      >>> tokens = model.generate(ids, custom_generate=decoder, cache_implementation="static")  # doctest: +SKIP
    """

    # Owns the model, and the captured steps by what they compute; at most eight.
    def __init__(self, model: Any) -> None:
        self._model = model
        self._steps: LruCache[Callable[..., Tensor]] = LruCache(limit=lambda: _MOST_STEPS)
        self._has_warned = False

    @torch.no_grad()
    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Sequence[Any],
        stopping_criteria: Sequence[Any],
        generation_config: Any,
        **model_kwargs: Any,
    ) -> Tensor:
        """Generate. ``generate`` passes the arguments.

        Args:
          model: the model of this decoder.
          input_ids: prompts, integers of shape (batch, length), padded on the left.
          logits_processor: transforms the scores of each step.
          stopping_criteria: end the generation.
          generation_config: how tokens are chosen.
          model_kwargs: inputs of the model, and the cache.

        Returns:
          The ids of the prompts and of the new tokens, integers of shape (batch, length).

        Raises:
          ValueError: no captured step can serve the call: the cache is not static, the model has an encoder, or the
            result is not only ids.
        """
        self._check(model, generation_config, model_kwargs)
        reader = find_reader_of_ids(logits_processor, stopping_criteria)
        ids = input_ids.to(model.device)
        inputs = DecodingInputs(model, ids, model_kwargs)
        if reader is None:
            choice = TokenChoice(logits_processor, stopping_criteria, generation_config)
            # A cache of the caller must not have one more token than the result.
            late = 0 if generation_config.cache_implementation is None else 1
            found = self._decode(inputs, ids, choice, late)
        else:
            self._warn_of(reader)
            found = self._decode_with_ids(inputs, ids, logits_processor, stopping_criteria, generation_config)
        return found.to(input_ids.device)

    def _check(self, model: Any, config: Any, kwargs: dict[str, Any]) -> None:
        cause = fix = ""
        cache = kwargs.get("past_key_values")
        kinds = {type(layer).__name__ for layer in getattr(cache, "layers", ())}
        if model is not self._model:
            cause, fix = "it was made for another model", "make one CapturedDecoder for each model"
        elif config.return_dict_in_generate or config.num_beams > 1 or kwargs.get("streamer") is not None:
            cause, fix = "it returns the token ids of one beam, and does not stream", "leave out custom_generate"
        elif model.config.is_encoder_decoder:
            cause, fix = "the model has an encoder", "leave out custom_generate"
        elif kinds != {"StaticLayer"}:
            names = ", ".join(sorted(kinds)) or type(cache).__name__
            cause = f"the cache ({names}) is not static, or slides over a window, whose position is a number in Python"
            fix = 'set cache_implementation="static"; for a model with sliding windows, leave out custom_generate'
        if cause:
            raise ValueError(messages.compose("CapturedDecoder: cannot decode for this call of generate()", cause, fix))

    def _warn_of(self, reader: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            cause = f"{reader} may read the ids of all tokens, whose number grows"
            fix = "leave it out; or ignore this warning: the forward of the model is captured"
            messages.warn(messages.compose("CapturedDecoder: the choice of tokens is not captured", cause, fix))

    def _captured(self, key: Hashable, make: Callable[[], Callable[..., Tensor]]) -> Callable[..., Tensor]:
        found = self._steps.get(key)
        if found is None:
            found = torch_xla.compile(make(), replay=True, name="the decoding step")
            self._steps.put(key, found)
        return found

    def _decode(self, inputs: DecodingInputs, ids: Tensor, choice: TokenChoice, late: int) -> Tensor:
        """Choose tokens in captured steps. ``late``: how many steps later the end of all sequences is noticed."""
        prompt, steps = ids.shape[1], choice.most - ids.shape[1]
        inputs.begin(choice.choose(inputs.prefill(), choice.list_active(prompt)))
        goes_on = [append_token(choice, inputs.tensors)]
        while (count := len(goes_on)) < steps:
            if choice.ends and count > late and not goes_on[count - 1 - late].item():
                break
            key = "step", choice.describe(prompt + count), inputs.description
            step = self._captured(key, partial(inputs.make_step, choice, choice.list_active(prompt + count)))
            goes_on.append(step(inputs.tensors))
        if choice.ends:  # the steps after the end are dropped
            first = max(0, count - 1 - late)
            count = next((i + 1 for i in range(first, count) if not goes_on[i].item()), count)
        # On the CPU, where no program is compiled for the length.
        return torch.cat([ids.cpu(), inputs.tensors["tokens"].cpu()[:, :count]], dim=1)

    def _decode_with_ids(
        self, inputs: DecodingInputs, ids: Tensor, processors: Any, criteria: Any, config: Any
    ) -> Tensor:
        """Capture the forward, and record the choice of tokens, as ``generate`` does."""
        ends = any(hasattr(criterion, "eos_token_id") for criterion in criteria)
        logits, unfinished = inputs.prefill(), None
        while True:
            token = choose_token(processors(ids, logits), config.do_sample)
            if unfinished is None:
                unfinished = torch.ones_like(token)
                inputs.begin(token)
            if ends:
                token = torch.where(unfinished > 0, token, pad_id(config, criteria))
            ids = torch.cat([ids, token[:, None]], dim=1)
            unfinished = unfinished & ~criteria(ids, None)
            if not unfinished.max().item():
                return ids
            inputs.tensors["token"].copy_(token)
            del token  # it shares the value, which a replay may overwrite otherwise
            logits = self._captured(("forward", inputs.description), inputs.make_forward)(inputs.tensors)
