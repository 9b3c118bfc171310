"""The methods of speculation, as vLLM 0.32 has them: the title of each, what it needs, and the options it takes.

docs/decisions/0033-speculation.md says what runs on which hardware. Knows nothing of models.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import Field

KnownSpeculation = Literal[
    "draft", "ngram", "ngram_adaptive", "suffix", "eagle", "eagle3", "medusa", "dflash", "custom"
]
Schedule = tuple[tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=0)]], ...]
"""(sequences that run together, from so many on; tokens proposed for each)."""

PROMPT_LOOKUP = (2, 4)
"""Shortest and longest n-gram that is looked up, in tokens (Saxena 2023, prompt lookup decoding; vLLM's documentation
has 2 and
4)."""
MOST_TOKENS = 16
DOTTED = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+"
"""package.module.Class, as vLLM takes it for a class and not for a model."""


class SpeculationMethod(NamedTuple):
    """One method.

    `needs` is what the user brings: a model, a head that reads the target's hidden states, or a class.
    """

    title: str
    """The words after "Speculate with"."""
    help: str
    """A sentence on what proposes the tokens."""
    needs: Literal["model", "head", "class"] | None
    options: frozenset[str]
    """The options it takes besides `tokens`."""
    engine_method: str
    """The method's name in vLLM."""
    once: bool = False
    """All draft tokens come from one pass of the drafter, not from one pass each."""
    engine_class: str | None = None
    """The class for `custom_class`, if it is ours and not a user's."""
    usual: int | None = None
    """Draft tokens where the recipe states none; None: the default of all methods."""
    only_likely: bool = False
    """Proposes nothing where no token is likely enough to pay."""


_HEAD = frozenset({"draft", "tokens_by_batch"})
SPECULATE: dict[KnownSpeculation, SpeculationMethod] = {
    "draft": SpeculationMethod(
        "a draft model",
        "A small model proposes the next tokens.",
        "model",
        _HEAD | {"heterogeneous_vocab"},
        "draft_model",
    ),
    "ngram": SpeculationMethod(
        "n-grams",
        "What followed the last tokens earlier in the text is proposed.",
        None,
        frozenset({"prompt_lookup_min", "prompt_lookup_max", "tokens_by_batch"}),
        "ngram",
    ),
    "ngram_adaptive": SpeculationMethod(
        "adaptive n-grams",
        "What followed the last tokens earlier in the text is proposed as far as it is likely enough to pay.",
        None,
        frozenset(),
        "custom_class",
        engine_class="whetstone_ngrams.AdaptiveNgrams",
        usual=8,
        only_likely=True,
    ),
    "suffix": SpeculationMethod(
        "suffixes of earlier answers",
        "What followed the same tokens in this and earlier answers is proposed.",
        None,
        frozenset(),
        "suffix",
    ),
    "eagle": SpeculationMethod(
        "an EAGLE head",
        "A layer trained on this model's hidden states proposes one token after the other.",
        "head",
        _HEAD,
        "eagle",
    ),
    "eagle3": SpeculationMethod(
        "an EAGLE-3 head",
        "A layer trained on the hidden states of three of this model's layers proposes the next tokens.",
        "head",
        _HEAD,
        "eagle3",
    ),
    "medusa": SpeculationMethod(
        "Medusa heads",
        "A head for each of the next tokens, all from one hidden state of this model.",
        "head",
        frozenset({"draft"}),
        "medusa",
        once=True,
    ),
    "dflash": SpeculationMethod(
        "a DFlash head",
        "A few layers trained for this model propose a block of tokens at once.",
        "head",
        _HEAD,
        "dflash",
        once=True,
    ),
    "custom": SpeculationMethod(
        "a proposer of one's own",
        "A Python class proposes; its code runs in the server.",
        "class",
        frozenset({"proposer"}),
        "custom_class",
    ),
}
assert tuple(SPECULATE) == get_args(KnownSpeculation)
OFFERED = ("draft", "ngram", "ngram_adaptive")
"""Methods that need nothing, or the draft that the model brings along; the others need something of the user's."""
OPTIONS = ("draft", "proposer", "heterogeneous_vocab", "prompt_lookup_min", "prompt_lookup_max", "tokens_by_batch")
OWN = OPTIONS[1:]
"""Options that only our servers take: neither the managed toolkit nor Neuron's libraries have them."""


def option_takers(option: str) -> str:
    """Return the methods that take the option, in words."""
    return " or ".join(f"`method: {name}`" for name, row in SPECULATE.items() if option in row.options)


def read_schedule(written: Any) -> Any:
    """Return `{1: 4, 8: 0}`, or the same as text without the braces, as pairs.

    Anything else is returned as it is, to be refused.
    """
    if isinstance(written, str):
        pairs = [part.partition(":") for part in written.strip("{} ").split(",")]
        written = {start.strip(): tokens.strip() for start, _, tokens in pairs}
    return (
        tuple((_as_whole_number(start), tokens) for start, tokens in written.items())
        if isinstance(written, dict)
        else written
    )


def format_schedule(schedule: Schedule) -> str:
    """Return the schedule as one line that `read_schedule` reads."""
    return ", ".join(f"{start}: {tokens}" for start, tokens in schedule)


def linked_changes(schedule: Schedule | None, tokens: int, option: str, new: Any) -> dict[str, Any]:
    """Return what else changes with `tokens` or the schedule: the largest of the schedule is `tokens`."""
    if option == "tokens" and schedule and isinstance(new, int):
        return {
            "tokens_by_batch": {start: new if drafted == tokens else min(drafted, new) for start, drafted in schedule}
        }
    if option != "tokens_by_batch" or not new:
        return {}
    most = max((int(drafted) for _, drafted in read_schedule(new) if str(drafted).isdecimal()), default=0)
    return {"tokens": most} if most else {}


def _as_whole_number(written: Any) -> Any:
    """Return a number that JSON wrote as a string, since its names are strings."""
    return int(written) if isinstance(written, str) and written.isdecimal() and len(written) < 9 else written


def schedule_problem(schedule: Schedule, tokens: int) -> str | None:
    """Return what is wrong with a schedule when at most `tokens` are proposed; None where nothing is."""
    starts, most = [start for start, _ in schedule], max((tokens_then for _, tokens_then in schedule), default=0)
    if not schedule or starts[0] != 1:
        return "`tokens_by_batch` must begin at 1 sequence, such as `{1: 4, 8: 0}`"
    if len(set(starts)) < len(starts):
        return "`tokens_by_batch` names a number of sequences twice: keep one"
    if most != tokens:
        return f"`tokens_by_batch` proposes up to {most} tokens and `tokens` is {tokens}: set `tokens: {most or 1}`"
    return None


def scheduled_tokens(schedule: Schedule, streams: int) -> int:
    """Return the tokens proposed for each sequence when `streams` sequences run."""
    return next(tokens for start, tokens in reversed(schedule) if start <= max(1, streams))
