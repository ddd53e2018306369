"""No module-level function is named by a bare participle, preposition or pronoun: `of`, `known`, `whom`, `laid_out`.

A function is a verb with an object (`place_inputs`), a predicate (`is_sharded`), or the noun that it returns
(`mesh_sharding`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from lint_rules.sources import Finding, is_upstream, module_functions


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Prepositions, pronouns, determiners, conjunctions and adverbs of place and time: none says what a function does.
FUNCTION_WORDS = _words(
    """about above after again alike alone along always anew anywhere apart around as at because before behind below
    beside between beyond both but by during each either elsewhere else everyone everything everywhere few for from
    here in inside into it its like many more most much neither never no nobody nothing now of off on once one only
    other others otherwise our ours out outside over own per same several since so some such than that their theirs
    them then there these they this those through to together towards twice under unless until upon us we what when
    whether which while who whom whose why with within without directly"""
)

#: Past tenses and participles that do not end in -ed. Where the verb is the same word (cut, put, read), it is fine.
IRREGULAR_FORMS = _words(
    """arisen beaten become begun bent bitten blown born borne bought broken brought built caught chosen dealt done
    drawn driven eaten fallen fed felt flown forbidden forgotten fought found frozen given gone grown heard held hidden
    hung kept known laid lain led left lent lit lost made meant met paid proven ran rewritten ridden risen rung said
    seen sent shaken shot shown shrunk slept sold sought spent spoken spun stolen stood stuck struck sung sunk sworn
    swept swum taken taught thought thrown told torn understood unmade unknown withdrawn woken won worn wound woven
    written
    ate arose began bit blew broke came chose did drew drove fell flew gave got grew had knew rose saw spoke stole swam
    took threw tore was were went woke wore wrote"""
)

#: Verbs and nouns of the field that only look like participles.
VERBS_AND_NOUNS = _words(
    """bed bind binding embed embedding encoding exceed feed indexing listing mapping need padding pooling proceed
    rendering ring seed setting sharding shred speed spring string succeed thread tiling timing tracing training
    wiring"""
)

#: Operators of torch, which are called as torch calls them.
OPERATORS = frozenset({"any", "as_strided", "searchsorted", "where"})

#: Behind a participle they add nothing: laid_out, taken_apart, left_behind.
_PARTICLES = _words("about again apart around away back by down here in off on out over there through to up")


_ADVICE = "name the function by a verb with an object, a predicate (is_, has_, can_), or the noun that it returns"


def is_participle(word: str) -> bool:
    if word in VERBS_AND_NOUNS:
        return False
    return word in IRREGULAR_FORMS or (len(word) > 4 and word.endswith(("ed", "ing")))


def is_bare(name: str) -> bool:
    """Whether a function's name has neither a verb nor a noun; leading underscores do not matter."""
    if name.startswith("__"):
        return False
    first, *rest = name.strip("_").split("_")
    if not first or name.strip("_") in OPERATORS:
        return False
    if first == "on" and rest:  # handles an event: on_launched
        return False
    if first == "of":  # of_script: for_script, script_cache
        return True
    return (first in FUNCTION_WORDS or is_participle(first)) and all(
        word in _PARTICLES or word in FUNCTION_WORDS or is_participle(word) for word in rest
    )


def check(paths: Iterable[Path]) -> Iterator[Finding]:
    for path in paths:
        for function in module_functions(path):
            if is_bare(function.name) and not is_upstream(path, function.name):
                yield Finding(path, function.lineno, f"{function.name}: {_ADVICE}")
