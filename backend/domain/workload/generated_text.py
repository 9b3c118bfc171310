"""Endless plain English prose and Python source from a seed: what the built-in workloads are made of. Pure.

The facts are invented, so no model can have learned them; the words are common ones, so that tokenizers treat them as
they do ordinary text. Nothing here knows of tokens.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

_SYLLABLES = (
    "bar",
    "cal",
    "dor",
    "el",
    "fen",
    "gar",
    "hal",
    "in",
    "kel",
    "lor",
    "mar",
    "nor",
    "os",
    "pel",
    "ran",
    "sel",
    "tor",
    "ul",
    "ven",
    "wick",
)
_ENDINGS = ("a", "en", "ford", "holm", "ia", "mouth", "stead", "ton", "ville", "worth")
_BODIES = (
    "city council",
    "harbour authority",
    "regional railway",
    "school board",
    "water company",
    "national museum",
    "university hospital",
    "weather service",
    "farmers' union",
    "library",
    "fire brigade",
    "film festival",
)
_ACTS = (
    "approved a plan to rebuild",
    "paid for the repair of",
    "opened a new wing of",
    "published a report on",
    "decided against the sale of",
    "began to survey",
    "took over the care of",
    "celebrated the return of",
)
_THINGS = (
    "the northern canal",
    "the old market hall",
    "a line of twelve bridges",
    "the botanical garden",
    "its main archive",
    "the river crossing",
    "the public observatory",
    "the coastal road",
    "a set of early maps",
    "the steam ferry",
)
_REASONS = (
    "because the winter floods had damaged it",
    "after three years of public debate",
    "although the cost had doubled",
    "when a private donor offered half of the money",
    "so that visitors could reach it on foot",
    "while the neighbouring towns looked on with interest",
    "since the earlier attempt had failed",
)
_PEOPLE = (
    "the engineer in charge",
    "a retired teacher",
    "the newly elected mayor",
    "one of the volunteers",
    "the chief archivist",
    "a visiting scientist",
    "the youngest member of the committee",
    "the owner of the mill",
)
_VERBS = ("explained", "wrote later", "told the local paper", "noted in a letter", "argued", "remembered")
_CLAIMS = (
    "that the work would take at least two more seasons",
    "that nobody had expected such a result",
    "that the drawings had been lost for a generation",
    "that the first estimate was far too low",
    "that the soil was softer than the maps suggested",
    "that a simpler design would have been enough",
    "that the whole district had changed since then",
)
_NOUNS = (
    "account",
    "batch",
    "cache",
    "event",
    "file",
    "graph",
    "index",
    "item",
    "job",
    "key",
    "line",
    "message",
    "node",
    "order",
    "page",
    "queue",
    "record",
    "report",
    "session",
    "table",
    "token",
    "user",
    "value",
    "window",
)
_DOES = (
    "build",
    "check",
    "collect",
    "count",
    "find",
    "group",
    "load",
    "merge",
    "parse",
    "read",
    "select",
    "sort",
    "split",
    "update",
)


def name(chance: random.Random) -> str:
    """An invented place."""
    return "".join(chance.choice(_SYLLABLES) for _ in range(chance.randint(1, 2))).capitalize() + chance.choice(
        _ENDINGS
    )


def event(chance: random.Random) -> tuple[str, str]:
    """A sentence that tells an invented event, and a question it answers."""
    place, body, act, thing = name(chance), chance.choice(_BODIES), chance.choice(_ACTS), chance.choice(_THINGS)
    sentence = f"In {chance.randint(1850, 2020)} the {body} of {place} {act} {thing} {chance.choice(_REASONS)}."
    question = f"In which year did the {body} of {place} deal with {thing}, and what is said about the circumstances?"
    return sentence, question


def sentences(chance: random.Random) -> Iterator[str]:
    """Prose without end: events, and what people said of them."""
    while True:
        yield event(chance)[0]
        for _ in range(chance.randint(1, 3)):
            yield _remark(chance)


def _remark(chance: random.Random) -> str:
    who, claim = chance.choice(_PEOPLE), f"{chance.choice(_VERBS)} {chance.choice(_CLAIMS)}"
    more = (
        f", and {chance.choice(_PEOPLE)} {chance.choice(_VERBS)} {chance.choice(_CLAIMS)}"
        if chance.random() < 0.5
        else ""
    )
    return f"{who.capitalize()} of {name(chance)} {claim}{more}."


def functions(chance: random.Random) -> Iterator[str]:
    """Python functions without end, each with a docstring."""
    while True:
        does, noun, other = chance.choice(_DOES), chance.choice(_NOUNS), chance.choice(_NOUNS)
        limit = chance.randint(2, 500)
        yield (
            f"def {does}_{noun}s({noun}s, {other}=None, limit={limit}):\n"
            f'    """{does.capitalize()} the {noun}s that belong to a {other}, at most {limit} of them."""\n'
            f"    found = []\n    for position, {noun} in enumerate({noun}s):\n"
            f"        if {other} is not None and {noun}.{other} != {other}:\n            continue\n"
            f"        found.append((position, {noun}))\n        if len(found) >= limit:\n            break\n"
            f"    return found\n\n\n"
        )


def signature(chance: random.Random) -> str:
    """The beginning of a function, to be completed."""
    does, noun, other = chance.choice(_DOES), chance.choice(_NOUNS), chance.choice(_NOUNS)
    docstring = f'"""{does.capitalize()} the {noun}s, grouped by their {other}."""'
    return f"def {does}_{noun}s_by_{other}({noun}s):\n    {docstring}\n"
