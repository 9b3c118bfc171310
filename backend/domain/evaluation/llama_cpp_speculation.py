"""Speculation as llama.cpp's server has it: the kinds, and the options of a `speculate` step that it lacks. Pure.

llama.cpp 0c1e57098, common/arg.cpp (`--spec-type`) and common/ngram-map.cpp.
"""

from __future__ import annotations

from typing import Protocol

from backend.domain.model.facts import ModelFacts
from backend.domain.recipe.serving_engines import Unsupported
from backend.domain.recipe.speculation import PROMPT_LOOKUP, Schedule

KINDS = {"draft": "draft-simple", "ngram": "ngram-simple"}
"""The names of our methods there; the server's log repeats them."""
SOURCE = "llama.cpp 0c1e57098, common/arg.cpp, --spec-type"
LOOKUP_SOURCE = "llama.cpp 0c1e57098, common/ngram-map.cpp, common_ngram_simple_draft"


class Speculating(Protocol):
    """A `speculate` step, or what was resolved of one; `prompt_lookup` None: the usual n-grams."""

    @property
    def method(self) -> str: ...
    @property
    def tokens(self) -> int: ...
    @property
    def heterogeneous_vocab(self) -> bool: ...
    @property
    def prompt_lookup(self) -> tuple[int, int] | None: ...
    @property
    def tokens_by_batch(self) -> Schedule | None: ...


def lookup_length(step: Speculating) -> int:
    """Return the tokens of the n-gram that is looked up: llama.cpp takes one length, the longest of the step."""
    return (step.prompt_lookup or PROMPT_LOOKUP)[1]


def find_unsupported_option(step: Speculating | None) -> Unsupported | None:
    """Return why llama.cpp cannot speculate with these options, and the nearest that works; None where it can."""
    if step is None:
        return None
    if step.tokens_by_batch:
        reason = "llama.cpp proposes the same number of tokens whatever runs at one time"
        return Unsupported(reason, "leave `tokens_by_batch` out, or serve the model with `engine: vllm`", SOURCE)
    if step.heterogeneous_vocab:
        reason = "llama.cpp's drafts have the vocabulary of the model"
        return Unsupported(
            reason, "use a draft of the same family without `heterogeneous_vocab`, or `engine: vllm`", SOURCE
        )
    if step.method == "ngram" and step.tokens < lookup_length(step):
        length = lookup_length(step)
        reason = (
            f"llama.cpp proposes nothing where an n-gram of {length} tokens is longer than the {step.tokens} proposed"
        )
        nearest = f"set `tokens: {length}`, or `prompt_lookup_max: {step.tokens}`"
        return Unsupported(reason, nearest, LOOKUP_SOURCE)
    return None


def flags(step: Speculating | None, draft: str) -> list[str]:
    """Return the server's options; `draft` is the GGUF file of the draft as the server is to find it."""
    if step is None or step.method not in KINDS:
        return []
    chosen = ["--spec-type", KINDS[step.method]]
    if step.method == "ngram":
        chosen += ["--spec-ngram-simple-size-n", str(lookup_length(step))]
        return [*chosen, "--spec-ngram-simple-size-m", str(step.tokens)]
    return [*chosen, "--spec-draft-model", draft, "--spec-draft-n-max", str(step.tokens)]


def find_unread_draft(step: Speculating, draft: ModelFacts | None) -> Unsupported | None:
    """Return why llama.cpp cannot read the draft, and what works; None where it can, or where nothing is known of
    it."""
    if step.method != "draft" or draft is None or draft.gguf_kept:
        return None
    return unread_draft(draft.id)


def unread_draft(name: str) -> Unsupported:
    """Return that a draft has no GGUF file, and what works."""
    reason = f"The draft {name} has no GGUF file, and llama.cpp reads nothing else"
    nearest = "import the draft from one (`whetstone models import FILE.gguf`), or use `method: ngram`"
    return Unsupported(reason, nearest, SOURCE)
