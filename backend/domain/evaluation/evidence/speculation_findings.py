"""Whether a server guesses ahead as it was asked: with this method and draft, at every load, and to some effect.
Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backend.domain.evaluation import vllm_flags
from backend.domain.evaluation.document import Level
from backend.domain.evaluation.evidence.engine_log import EngineLog
from backend.domain.evaluation.evidence.schema import Drafting, Finding
from backend.domain.evaluation.evidence.served_variant import ServedVariant
from backend.domain.figures import listed
from backend.domain.recipe.speculation import SPECULATE, scheduled_tokens

DRAFT = "draft-model"
"""What a server that was started here finds its draft as (`serving.vllm_options.DRAFT_LINK`)."""
ENOUGH_DRAFTED = 100
"""Drafted tokens of which not one was accepted: then it is not chance."""
ENOUGH_STEPS, LEAST_SHARE = 50, 0.5
"""A draft model proposes at each step after a request's first: in less than half of them, it was off for a part."""
LOOKUP_METHODS = {"ngram", "suffix", "custom_class"}
"""Methods that may propose only where the text has been there before."""


def check_configuration(wanted: Mapping[str, Any], log: EngineLog) -> Finding | None:
    """What is wrong with it by the engine's own configuration; None where nothing is. `wanted`: the
    `--speculative-config`."""
    seen = log.speculates
    if not log.settings:
        words = "Whether it speculates cannot be proven: the engine's log does not say it, and its counters cannot be reached."
        return Finding(what="speculation", proven=None, words=words)
    model = wanted.get("model") if wanted.get("method") != "custom_class" else None  # of a class the log names none
    if seen is None or (model and str(model) not in (seen.model or "")):
        cause = "The speculation that was asked did not reach the engine, or it names another draft."
        return Finding(
            what="speculation",
            proven=False,
            words="It does not speculate: the engine started without the draft.",
            cause=cause,
        )
    asked = str(wanted.get("method", seen.method))
    if seen.method != asked:
        words = f"The engine's log says method={seen.method}, where {asked} was asked."
        return Finding(what="speculation", proven=False, words=words, cause="vLLM took the draft for another kind.")
    tokens = wanted.get("num_speculative_tokens")
    if tokens is not None and seen.tokens not in {None, tokens}:
        words = f"The engine's log says num_spec_tokens={seen.tokens}, where {tokens} were asked."
        cause = "A head that proposes so many tokens, or a schedule, cuts it."
        return Finding(what="speculation", proven=False, words=words, cause=cause)
    return None


def acceptance_finding(accepted: int, drafted: int, where: str) -> Finding:
    """Of something that was drafted."""
    said = f"{where} counts {accepted:,} of {drafted:,} drafted tokens accepted"
    if not accepted and drafted >= ENOUGH_DRAFTED:
        cause = "The draft knows nothing of this target: another tokenizer, other weights, or a head that was not trained for it."
        return Finding(what="speculation", proven=False, words=f"It speculates in vain: {said}.", cause=cause)
    return Finding(what="speculation", proven=True, words=f"It speculates: {said}.")


def speculation_finding(case: ServedVariant) -> Finding | None:
    """None where none was asked and none is there."""
    asked, log = case.variant.speculation, case.evidence.log
    if asked is None:
        return _unasked(case)
    wanted = vllm_flags.speculative_config(asked, DRAFT)
    wrong = check_configuration(wanted, log)
    if wrong is not None and wrong.proven is False:
        return wrong
    if (
        log.arguments.get("rejection_sample_method") == "synthetic"
        and wanted.get("rejection_sample_method") != "synthetic"
    ):
        words = "Acceptance is made up: the server was started with rejection_sample_method=synthetic."
        return Finding(what="speculation", proven=False, words=words, cause="A flag of the payoff map's was left on.")
    told = [(level, level.drafting) for level in case.levels if level.drafting is not None]
    if not told:
        return wrong or _uncounted(case)
    due = [
        pair
        for pair in told
        if asked.tokens_by_batch is None or scheduled_tokens(asked.tokens_by_batch, pair[0].concurrency)
    ]
    if not due:
        words = "The schedule of the recipe turns it off at every load that was measured."
        return Finding(what="speculation", proven=True, words=words)
    if SPECULATE[asked.method].only_likely and not any(drafting.drafted_tokens for _, drafting in due):
        words = "It drafted not one token at any load: nothing there was likely enough to pay."
        return Finding(what="speculation", proven=None, words=words)
    return _at_levels(due, str(wanted["method"]))


def _unasked(case: ServedVariant) -> Finding | None:
    seen = case.evidence.log.speculates
    drafted = sum(level.drafting.drafted_tokens for level in case.levels if level.drafting is not None)
    if seen is None and not drafted:
        return None
    words = f"It speculates ({seen.method if seen else f'{drafted:,} tokens drafted'}), where no speculation was asked."
    return Finding(
        what="speculation", proven=False, words=words, cause="The model's own config brings a head that vLLM uses."
    )


def _uncounted(case: ServedVariant) -> Finding:
    if not case.levels:
        words = "The engine started with speculation; that it drafts cannot be proven, as nothing was measured."
        return Finding(what="speculation", proven=None, words=words)
    words = "The engine started with speculation, but the server counts no drafts."
    return Finding(
        what="speculation", proven=False, words=words, cause="Its proposer was never made: see the server's log."
    )


def _at_levels(told: Sequence[tuple[Level, Drafting]], method: str) -> Finding:
    """Of loads at which it should propose."""
    drafted = sum(each.drafted_tokens for _, each in told)
    if not drafted:
        return Finding(
            what="speculation", proven=False, words="It drafted not one token at any load.", cause=_why_none(method)
        )
    silent = [level.load.words for level, each in told if not each.drafted_tokens]
    if silent and method not in LOOKUP_METHODS:
        words = f"It drafted nothing at {listed(silent)}, though it did at other loads."
        return Finding(
            what="speculation", proven=False, words=words, cause="vLLM turns speculation off above a batch size."
        )
    rare = [(level.load.words, share) for level, each in told if (share := _share(level, each)) is not None]
    if method not in LOOKUP_METHODS and rare and min(share for _, share in rare) < LEAST_SHARE:
        where, share = min(rare, key=lambda pair: pair[1])
        words = f"It drafted in only {share:.0%} of the steps at {where}."
        return Finding(
            what="speculation", proven=False, words=words, cause="vLLM turns speculation off above a batch size."
        )
    return acceptance_finding(sum(each.accepted_tokens for _, each in told), drafted, "the server")


def _share(level: Level, drafting: Drafting) -> float | None:
    """Of steps that could have had a draft, those that had; None of too few to tell."""
    if drafting.generated_tokens is None:
        return None
    steps = drafting.generated_tokens - drafting.accepted_tokens - level.requests - level.audit.warmup_requests
    return drafting.drafts / steps if steps >= ENOUGH_STEPS else None


def _why_none(method: str) -> str:
    if method in LOOKUP_METHODS:
        return "Nothing in these prompts and answers repeats, so there was nothing to look up: measure on prompts like yours."
    return "Prompts and answers are too short for a draft, or it is off above a batch size below every load."
