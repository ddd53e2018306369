"""Release the jaxprs of lowered programs, and the arrays that their functions close over, from jax's caches."""

from __future__ import annotations

from torch_xla._engine.compat.private_api import PrivateApi

_DCE = PrivateApi(
    "jax._src.interpreters.pxla",
    "_dce_jaxpr",
    "jax's cache of pruned jaxprs: jax 0.12 never frees the entries of programs with keep_unused",
    "jax keeps the jaxprs of up to 2,048 programs, with the arrays that their functions close over",
)


def release_jaxprs() -> None:
    """Clear jax's cache of pruned jaxprs; after a program is lowered.

    The cache refers to its keys weakly, but with keep_unused the value of an entry is its key, so that it stays
    (checked on jax 0.12.0.1; not so before 0.12).
    Lowering a function again then prunes its jaxpr again, which takes less than a millisecond.
    """
    cache = _DCE.resolve_or_none()
    if cache is not None:
        cache.cache_clear()
