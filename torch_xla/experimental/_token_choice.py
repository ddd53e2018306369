"""How a decoding step chooses tokens: logits processors of transformers, argmax or a random draw, end of sequences."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

#: Processors that read the scores, and nothing of the ids.
_OF_SCORES = frozenset({
    "EpsilonLogitsWarper", "EtaLogitsWarper", "InfNanRemoveLogitsProcessor", "LogitNormalization", "MinPLogitsWarper",
    "SuppressTokensLogitsProcessor", "TemperatureLogitsWarper", "TopHLogitsWarper", "TopKLogitsWarper",
    "TopPLogitsWarper", "TypicalLogitsWarper",
})  # fmt: skip
#: Processors that read the number of the ids, and change nothing from some length on.
_OF_SHORT = frozenset({"MinLengthLogitsProcessor", "MinNewTokensLengthLogitsProcessor"})
_CRITERIA = frozenset({"MaxLengthCriteria", "EosTokenCriteria"})


def _kind(value: Any) -> str:
    """Return the name of a class of transformers; of another class, with its module."""
    cls = type(value)
    return cls.__name__ if cls.__module__.startswith("transformers.") else f"{cls.__module__}.{cls.__qualname__}"


def find_reader_of_ids(processors: Sequence[Any], criteria: Sequence[Any]) -> str | None:
    """Return the name of a processor or criterion that reads the ids of all tokens, or may; None if there is none."""
    known = _OF_SCORES | _OF_SHORT | _CRITERIA
    return next((_kind(value) for value in (*processors, *criteria) if _kind(value) not in known), None)


def _shortest(processor: Any) -> int:
    """Return the length from which on a processor of _OF_SHORT changes nothing."""
    if hasattr(processor, "min_length"):
        return int(processor.min_length)
    return int(processor.prompt_length_to_skip + processor.min_new_tokens)


def _plain(value: Any) -> Hashable:
    return (str(value.dtype), str(value.tolist())) if isinstance(value, Tensor) else repr(value)


def list_ends(criteria: Sequence[Any]) -> list[int]:
    """Return the token ids that end a sequence."""
    return [int(i) for c in criteria if _kind(c) == "EosTokenCriteria" for i in c.eos_token_id.tolist()]


def pad_id(config: Any, criteria: Sequence[Any]) -> int:
    """Return the token id of sequences that have ended."""
    return int(config.pad_token_id if config.pad_token_id is not None else next(iter(list_ends(criteria)), 0))


def choose_token(scores: Tensor, is_random: bool) -> Tensor:
    """Return the tokens of shape (batch,) of scores of shape (batch, words)."""
    if is_random:
        return torch.multinomial(scores.softmax(-1), num_samples=1).squeeze(1)
    return scores.argmax(-1)


class TokenChoice:
    """Chooses the tokens of one call of ``generate``.

    Args:
      processors: that need not see the ids.
      criteria: MaxLengthCriteria and EosTokenCriteria.
      config: the GenerationConfig.
    """

    def __init__(self, processors: Sequence[Any], criteria: Sequence[Any], config: Any) -> None:
        self._processors, self._is_random = list(processors), bool(config.do_sample)
        self.ends, self.pad = list_ends(criteria), pad_id(config, criteria)
        self.most = min(int(c.max_length) for c in criteria if _kind(c) == "MaxLengthCriteria")
        self._plain = [(_kind(p), *sorted((k, _plain(v)) for k, v in vars(p).items())) for p in self._processors]

    def list_active(self, length: int) -> list[Any]:
        """Return the processors that may change scores after ``length`` tokens."""
        return [p for p in self._processors if _kind(p) not in _OF_SHORT or length < _shortest(p)]

    def describe(self, length: int) -> Hashable:
        """Return what must be equal for two choices to be computed by one program."""
        active = {id(p) for p in self.list_active(length)}
        found = [plain for p, plain in zip(self._processors, self._plain, strict=True) if id(p) in active]
        # The lengths that two of them compare with are no part of the program.
        names = ("min_length", "prompt_length_to_skip", "min_new_tokens")
        kept = tuple(tuple(item for item in plain if item[0] not in names) for plain in found)
        return kept, self._is_random, tuple(self.ends), self.pad

    def tensors(self) -> Iterator[Tensor]:
        """Yield the tensors that the processors hold."""
        for processor in self._processors:
            yield from (value for value in vars(processor).values() if isinstance(value, Tensor))

    def choose(self, logits: Tensor, processors: Sequence[Any]) -> Tensor:
        """Return the next tokens of shape (batch,). ``logits``: (batch, words)."""
        none = torch.empty((len(logits), 0), dtype=torch.int64, device=logits.device)
        for processor in processors:
            logits = processor(none, logits)
        return choose_token(logits, self._is_random)

    def end(self, token: Tensor, unfinished: Tensor) -> Tensor:
        """Pad ended sequences in ``token``, and update ``unfinished`` (int64), in place. Return whether one goes on."""
        if self.ends:
            token.copy_(torch.where(unfinished > 0, token, self.pad))
            for end in self.ends:
                unfinished.mul_(token != end)
        return unfinished.max()
