"""Finds whether a server speculates as requested: with this method and draft, at every load, and with some effect.
Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backend.domain.evaluation import vllm_flags
from backend.domain.evaluation.document import Level, Speculation
from backend.domain.evaluation.evidence.engine_log import EngineLog
from backend.domain.evaluation.evidence.schema import Drafting, Finding
from backend.domain.evaluation.evidence.served_variant import ServedVariant
from backend.domain.figures import listed
from backend.domain.recipe.speculation import SPECULATE, scheduled_tokens

ENOUGH_DRAFTED = 100
"""If none of so many drafted tokens was accepted, that is not chance."""
ENOUGH_STEPS, LEAST_SHARE = 50, 0.5
"""A draft model proposes at each step after a request's first one: in fewer than half of them, it was off at times."""
LOOKUP_METHODS = {"ngram", "ngram-simple", "suffix", "custom_class"}
"""Methods that propose only where text repeats."""


def check_configuration(requested: Mapping[str, Any], log: EngineLog) -> Finding | None:
    """Check the engine's own configuration against `requested`, the `--speculative-config`; None where it agrees."""
    logged = log.speculation
    # 1. Whether it speculates at all, with this draft.
    if not log.settings:
        words = (
            "Speculation cannot be checked: the engine's log does not mention it, and its counters cannot be reached."
        )
        return Finding(what="speculation", proven=None, words=words)
    model = requested.get("model") if requested.get("method") != "custom_class" else None  # the log names no class
    if logged is None or (model and str(model) not in (logged.model or "")):
        cause = "The requested speculation did not reach the engine, or it names another draft."
        return Finding(
            what="speculation",
            proven=False,
            words="It does not speculate: the engine started without the draft.",
            cause=cause,
        )
    # 2. The method and the number of tokens.
    method = str(requested.get("method", logged.method))
    if logged.method != method:
        words = f"The engine's log says method={logged.method}, where {method} was requested."
        return Finding(what="speculation", proven=False, words=words, cause="vLLM took the draft for another kind.")
    tokens = requested.get("num_speculative_tokens")
    if tokens is not None and logged.tokens not in {None, tokens}:
        words = f"The engine's log says num_spec_tokens={logged.tokens}, where {tokens} were requested."
        cause = "A head that proposes only so many tokens, or a schedule, limits it."
        return Finding(what="speculation", proven=False, words=words, cause=cause)
    return None


def acceptance_finding(accepted: int, drafted: int, where: str) -> Finding:
    """Judge the accepted tokens where something was drafted."""
    counts = f"{where} counts {accepted:,} of {drafted:,} drafted tokens accepted"
    if not accepted and drafted >= ENOUGH_DRAFTED:
        cause = (
            "The draft does not match the model: another tokenizer, other weights, or a head that was not trained for "
            "it."
        )
        return Finding(what="speculation", proven=False, words=f"It speculates without effect: {counts}.", cause=cause)
    return Finding(what="speculation", proven=True, words=f"It speculates: {counts}.")


def speculation_finding(case: ServedVariant) -> Finding | None:
    """Return the finding on speculation; None where none was requested and none happened."""
    speculation, log = case.variant.speculation, case.evidence.log
    if speculation is None:
        return _unrequested(case)
    # 1. The configuration.
    config = vllm_flags.speculative_config(speculation, vllm_flags.DRAFT_LINK)
    wrong = check_configuration(config, log)
    if wrong is not None and wrong.proven is False:
        return wrong
    if (
        log.arguments.get("rejection_sample_method") == "synthetic"
        and config.get("rejection_sample_method") != "synthetic"
    ):
        words = "Acceptance is synthetic: the server was started with rejection_sample_method=synthetic."
        return Finding(what="speculation", proven=False, words=words, cause="A flag for payoff maps was left on.")
    # 2. What it counted.
    return counted_finding(case, speculation, str(config["method"]), wrong)


def counted_finding(
    case: ServedVariant, speculation: Speculation, method: str, otherwise: Finding | None = None
) -> Finding:
    """Judge the counts at the loads at which it should propose; `otherwise` where nothing was counted."""
    counted = [(level, level.drafting) for level in case.levels if level.drafting is not None]
    if not counted:
        return otherwise or _uncounted(case)
    schedule = speculation.tokens_by_batch
    expected = [pair for pair in counted if schedule is None or scheduled_tokens(schedule, pair[0].concurrency)]
    if not expected:
        words = "The schedule of the recipe turns speculation off at every load that was measured."
        return Finding(what="speculation", proven=True, words=words)
    if SPECULATE[speculation.method].only_likely and not any(drafting.drafted_tokens for _, drafting in expected):
        words = "It drafted no token at any load: no draft was likely enough to pay off."
        return Finding(what="speculation", proven=None, words=words)
    return _level_finding(expected, method)


def _unrequested(case: ServedVariant) -> Finding | None:
    logged = case.evidence.log.speculation
    drafted = sum(level.drafting.drafted_tokens for level in case.levels if level.drafting is not None)
    if logged is None and not drafted:
        return None
    method = logged.method if logged else f"{drafted:,} tokens drafted"
    words = f"It speculates ({method}), where no speculation was requested."
    return Finding(
        what="speculation", proven=False, words=words, cause="The model's own config brings a head that vLLM uses."
    )


def _uncounted(case: ServedVariant) -> Finding:
    if not case.levels:
        words = "The engine started with speculation; nothing was measured, so drafting cannot be checked."
        return Finding(what="speculation", proven=None, words=words)
    words = "The engine started with speculation, but the server counts no drafts."
    return Finding(
        what="speculation", proven=False, words=words, cause="Its proposer was never created: see the server's log."
    )


def _level_finding(counted: Sequence[tuple[Level, Drafting]], method: str) -> Finding:
    """Judge the loads at which it should propose."""
    # 1. No drafts at all, or none at some loads.
    drafted = sum(drafting.drafted_tokens for _, drafting in counted)
    if not drafted:
        return Finding(
            what="speculation", proven=False, words="It drafted no token at any load.", cause=_why_none(method)
        )
    silent = [level.load.words for level, drafting in counted if not drafting.drafted_tokens]
    if silent and method not in LOOKUP_METHODS:
        words = f"It drafted nothing at {listed(silent)}, though it did at other loads."
        return Finding(
            what="speculation", proven=False, words=words, cause="The engine turns speculation off above a batch size."
        )
    # 2. Drafts at only a part of the steps.
    shares: list[tuple[float, str]] = []
    for level, drafting in counted:
        share = _draft_share(level, drafting)
        if share is not None:
            shares.append((share, level.load.words))
    if method not in LOOKUP_METHODS and shares and min(shares)[0] < LEAST_SHARE:
        share, where = min(shares, key=lambda pair: pair[0])
        words = f"It drafted in only {share:.0%} of the steps at {where}."
        return Finding(
            what="speculation", proven=False, words=words, cause="The engine turns speculation off above a batch size."
        )
    # 3. What was accepted.
    accepted = sum(drafting.accepted_tokens for _, drafting in counted)
    return acceptance_finding(accepted, drafted, "the server")


def _draft_share(level: Level, drafting: Drafting) -> float | None:
    """Return the share of steps with a draft among those that could have one; None where there are too few."""
    if drafting.generated_tokens is None:
        return None
    steps = drafting.generated_tokens - drafting.accepted_tokens - level.requests - level.audit.warmup_requests
    return drafting.drafts / steps if steps >= ENOUGH_STEPS else None


def _why_none(method: str) -> str:
    if method in LOOKUP_METHODS:
        return (
            "Nothing in these prompts and answers repeats, so there was nothing to look up: measure with prompts like "
            "yours."
        )
    return "Prompts and answers are too short for a draft, or it is off above a batch size below every load."
