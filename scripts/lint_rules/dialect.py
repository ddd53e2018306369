"""Phrases of the private dialect that this project used to be written in, which may not come back.

They are searched in documents and in the comments, docstrings and messages of code, where they may span lines. Each has
the term of PyTorch, jax or XLA that says the same. A pattern must be narrow enough to leave ordinary English alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from lint_rules.sources import Finding, prose

#: What a tensor, a buffer or a graph is called in these patterns.
_VALUE = r"(?:tensors?|inputs?|parameters?|values?|results?|arrays?|buffers?|shards?|leaf|leaves|weights?|outputs?)"

#: Regular expression, in which a space matches any white space -> what to write instead.
PHRASES = {
    # How tensors are sharded.
    r"(?:lie|lies)\b(?! (?:in|between|within|inside|outside|above|below|on)\b)": "is sharded, is placed",
    rf"{_VALUE} (?:that )?lay\b": "was sharded, was placed",
    r"(?:as|how|where) (?:they|it|a tensor|tensors) lay\b": "sharding, layout, placement",
    r"(?:lie|lies|lay) (?:in parts|in another way|in the same way|on a mesh|on the mesh)\b":
        "is sharded like, has the same sharding",
    r"(?:laid|lay|lays|laying)(?: |-)out\b(?! in (?:memory|row|column))": "sharded, resharded, placed",
    r"in parts\b(?! (?:of|per)\b)": "sharded, in shards",
    r"whole (?:tensor|array|parameter|weight|gradient|value)s?\b": "full, unsharded",
    r"filled up\b": "padded",
    # Graphs, programs and values.
    r"(?:cut|cuts|cutting) (?:the|a|its|this|that|every) graphs?\b": "flush the graph",
    r"graphs? (?:is|are|was|were|be|gets|being) (?:not )?cut\b": "the graph is flushed",
    r"(?:take|takes|taken|taking) (?:\w+ )?apart\b": "flatten, decompose",
    r"(?:puts?|putting|put) together\b": "assemble, unflatten",
    r"(?:calls?|called|runs?|running|ran) apart\b": "fallback, runs outside the interpreter",
    r"at once\b": "eagerly, immediately, at the same time",
    r"under way\b": "in flight, pending",
    r"anew\b": "again, from scratch",
    r"comes? again\b": "recurs",
    r"storms?\b": "unstable call site, shape-unstable",
    r"promise[sd]?\b": "output spec, declared shape and dtype",
    r"twins?\b": "alias",
    r"nests\b": "pytrees, nested containers",
    r"as asked\b": "on demand",
    r"(?:(?:takes?|taking) )(?:a )?shortcuts?\b": "forwarding",
    r"(?:exact|precise|small) products\b": "matmul precision, small matmuls",
    r"how (?:exact|precise)(?:ly)? (?:\w+ )?products\b": "matmul precision",
    r"narrow(?:ed|ing)? dtypes?\b": "storage dtype",
    r"programs? (?:that )?(?:is|are|was|were) (?:not )?kept\b": "cached",
    r"(?:has|have|had) no room\b": "does not fit, exceeds the capacity",
    r"makes? room\b": "evicts",
    # Replicas and devices.
    r"everyone\b": "all replicas",
    r"teams? of (?:replicas|devices|processes|threads)\b": "replica group",
    r"(?:replicas|processes|threads|hosts|workers) (?:all )?(?:meet|met)\b": "synchronize",
    r"meetings?\b(?! minutes)": "rendezvous",
    r"disagreements?\b": "collective mismatch",
    r"(?:stands?|standing) for (?:a|the|all|every|each|one) (?:replicas?|others?)\b": "simulates",
    r"(?:represents?|representing) (?:a|the|all|every|each) replicas?\b": "simulates",
    r"described devices?\b": "emulated device",
    r"(?:that|which) (?:is|are) not here\b": "unavailable hardware, ahead-of-time target",
    r"(?:asked|called|computed|runs?|ran|decided) elsewhere\b": "redispatched to the meta or CPU device",
    # Errors and diagnostics.
    r"(?<!connection\s)refuse[sd]?\b": "raise, reject",
    r"refusals?\b": "error, argument check",
    r"in (?:its|their|our|so many|torch's|the CPU's) words\b": "as text, in terms of",
    r"(?:has|have|had) (?:\w+ )?words for\b": "has an error message for",
    r"verdicts?\b": "bottleneck, diagnosis, result",
    r"surroundings\b": "environment",
    r"the journal\b": "step timings",
    r"watchers?\b": "tracker, collector, monitor",
    r"(?:the makers?|makers? of)\b": "provenance",
    r"mend(?:s|ed|ing)?\b": "fix",
    # Ways of speaking.
    r"nobody\b": "no caller, no thread, unset",
    r"whoever\b": "the caller, the user",
    r"whom\b": "placement, recipient: name it",
    r"of (?:its|their|one's|our|your|my) own\b(?! accord)": "its own, a separate",
    r"(?:dear|dearer|dearest)\b": "expensive, most expensive",
    r"(?:(?:where|what|if|when|whether|until|before) (?:it|that|this|one|they) pays?)\b": "is profitable",
    r"as (?:was )?said(?: above| before| below)?\b": "do not repeat a name: say what it does, or leave it out",
    r"nothing but\b": "only",
    r"knows? (?:nothing|none) of\b": "does not depend on, does not import",
    r"(?:graph|program|compiler|torch|jax|XLA|kernel|rule|loader|library) wants?\b": "requires, expects, requests",
    r"(?:who|what|which|he|she|it) (?:is|was|are|were) told\b": "reported, notified",
    r"(?:is|are|was|were) not there\b": "is missing, is not installed, is not supported",
    r"(?:come|comes) along\b": "is installed with, is bundled with",
    r"(?:programs?|graphs?|steps?|ops?) (?:on the CPU )?(?:do|does) without\b": "does not use",
    r"ever new\b": "a new one on every call",
    r"each waited for\b": "synchronized after each",
    r"(?:go|goes) by the (?:hosts?|devices?)\b": "use the host network, run on the devices",
    r"what is left to gain\b": "say what bounds the step and what to change",
    r"as the compiler likes\b": "the sharding the compiler chooses",
    r"(?:doors?|rooms)\b": "entry points, targets, packages",
    r"(?:the way out|which way when|what is there|is it alive|is everything there)\b": "a heading to search for",
}  # fmt: skip

_EACH = {re.compile(phrase.replace(" ", r"\s+").lower()): advice for phrase, advice in PHRASES.items()}
_ANY = re.compile(rf"\b(?:{'|'.join(pattern.pattern for pattern in _EACH)})")


def check(paths: Iterable[Path]) -> Iterator[Finding]:
    for path in paths:
        text = re.sub(r"[ \t]+", " ", prose(path).lower())  # ten times as fast to search
        for match in _ANY.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            advice = next(advice for pattern, advice in _EACH.items() if pattern.match(text, match.start()))
            yield Finding(path, line, f'"{" ".join(match[0].split())}": write {advice}')
