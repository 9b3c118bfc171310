"""The planned load in words: one line for the bar, and what a page says where its figures are of another load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from backend.domain.evaluation.document import Evaluation, Level
from backend.domain.figures import counted, figure
from backend.domain.load.load import Load
from backend.domain.machine.price_list import discount_text
from backend.domain.planner.estimate import Estimate
from backend.domain.planner.planned_load import PROFILES, PlannedLoad
from backend.domain.planner.roofline import ExpectedLoad

CUSTOM = "Custom"
SAME_LENGTH = 0.1
"""Relative difference of mean tokens up to which a measurement is of the planned load."""
LIMITS_HELP = "For that percentile of measured requests, and for the worst end of an estimate."


def profile_title(name: str | None) -> str:
    """Return `Chat`, or `Custom` for tokens that no profile has."""
    return PROFILES[name].title if name else CUSTOM


def tokens(load: PlannedLoad | ExpectedLoad) -> str:
    """Return `622/250 tokens`: those of the prompt and of the answer."""
    return f"{load.input_tokens:,}/{load.output_tokens:,} tokens"


def demand(load: PlannedLoad | ExpectedLoad) -> str:
    """Return `16 users` or `2.5 requests/s`."""
    return counted(load.concurrency, "user") if load.rate is None else f"{load.rate:,.6g} requests/s"


def requests(load: PlannedLoad | ExpectedLoad) -> str:
    """Return `16 users, 622/250 tokens`, or `2.5 requests/s, 622/250 tokens`."""
    return f"{demand(load)}, {tokens(load)}"


def several(target: str, number: int) -> str:
    """Return the target, or `3 x ml.g5.12xlarge`."""
    return target if number == 1 else f"{number:,} x {target}"


def instances(target: str, estimate: Estimate | None) -> str:
    """Return the target with the number of instances that share the rate."""
    return several(target, estimate.instances if estimate else 1)


def rate_basis(load: ExpectedLoad) -> str:
    """Return a sentence on prices at a rate, with a space before it; empty without a rate."""
    if load.rate is None:
        return ""
    return f" Prices are per token that {demand(load)} ask for, on as many instances as carry them."


def instances_sentence(estimate: Estimate) -> str | None:
    """Say that one instance does not carry the rate, and how many do at which price; None if one carries it."""
    if estimate.instances == 1 or estimate.carried_requests_per_s is None:
        return None
    hour = estimate.price_of_all_per_hour
    price = "" if hour is None else f", for {hour:,.4g} USD per hour"
    place, one = ("machines like this", "This machine") if estimate.target == "local" else ("instances", "One instance")
    carried = f"{figure(estimate.carried_requests_per_s)} requests/s at the worst end of the estimate"
    return f"{one} carries {carried}: {estimate.instances:,} {place} carry {demand(estimate.load)}{price}."


def summary(load: PlannedLoad) -> str:
    """Return the whole load in one line; what is not limited or chosen is left out."""
    parts = [f"{load.workload or profile_title(load.profile)}, {tokens(load)}", demand(load)]
    parts += [f"TTFT {load.percentile} ≤ {figure(load.max_ttft_ms)} ms"] if load.max_ttft_ms is not None else []
    parts += [f"TPOT {load.percentile} ≤ {figure(load.max_tpot_ms)} ms"] if load.max_tpot_ms is not None else []
    parts += [f"KL ≤ {load.max_kl:g}"] if load.max_kl is not None else []
    parts += ["this machine" if load.target == "local" else load.target] if load.target else []
    parts += [f"prices of {load.region}"] if load.region else []
    parts += [discount_text(load.discount).strip(" ()")] if load.discount else []
    return " · ".join(parts)


def workload_basis(prompts: int, model: str | None, *, answers: bool) -> str:
    """Say what the tokens of an uploaded workload are. `model`: whose tokenizer counted; None: characters were counted.
    `answers`: the tokens out are those of its longest answers."""
    by = f"by the tokenizer of {model}" if model else "at 4 characters a token, as no model here has a tokenizer"
    also = " Tokens out: the mean of the longest answers that the file names." if answers else ""
    return f"Tokens in: the mean of {counted(prompts, 'prompt')}, {by}.{also}"


def missing_workload(name: str) -> str:
    """Say that an uploaded workload of a link is not here."""
    return f"There is no workload `{name}` here: choose or upload one under Your load."


def shortened(load: ExpectedLoad, fitted: ExpectedLoad) -> str | None:
    """Say that a model's context is shorter than a request of the load; None if it is not."""
    if load == fitted:
        return None
    return (
        f"A request of your load has {load.input_tokens + load.output_tokens:,} tokens, more than this model takes: "
        f"estimated for {tokens(fitted)}."
    )


def limit_sentences(estimate: Estimate, load: PlannedLoad) -> list[str]:
    """Say of each latency limit whether an estimate meets it; nothing of a latency that is unknown."""
    limits = {
        "Time to first token": (estimate.ttft_ms, load.max_ttft_ms),
        "Time per output token": (estimate.tpot_ms, load.max_tpot_ms),
    }
    sentences = []
    for title, (ends, most_ms) in limits.items():
        if ends is None or most_ms is None:
            continue
        verdict = "may be above it"
        if ends[1] <= most_ms:
            verdict = "meets it"
        elif ends[0] > most_ms:
            verdict = "does not meet it"
        sentences.append(f"{title}: your limit is {figure(most_ms)} ms, and the estimate {verdict}.")
    return sentences


def nearest_level(measured: int, load: ExpectedLoad) -> str | None:
    """Say that an estimate was corrected by a measurement at another number of streams; None if it is the same."""
    if measured == load.concurrency:
        return None
    return f"Your load is {requests(load)}: the correction is that of the nearest measured level."


def floor_sentence(losses: Mapping[str, float | None], max_kl: float | None) -> str | None:
    """Say which variants lose more quality than the floor allows; None without a floor or if none does.

    `losses`: mean KL divergence of each variant, None where it was not scored.
    """
    if max_kl is None:
        return None
    over = [f"{name} ({loss:.3g})" for name, loss in losses.items() if loss is not None and loss > max_kl]
    if not over:
        return None
    return f"Above your quality floor (KL divergence at most {max_kl:g}): {', '.join(over)}."


def mean_tokens(levels: Sequence[Level]) -> tuple[float, float] | None:
    """Return the mean tokens of prompts and answers over measured levels; None where they were not counted."""
    sent = [level.input_tokens for level in levels if level.input_tokens]
    answered = [level.output_tokens for level in levels if level.output_tokens]
    return (fmean(sent), fmean(answered)) if sent and answered else None


def measured_elsewhere(levels: Sequence[Load], lengths: tuple[float, float] | None, load: PlannedLoad) -> str | None:
    """Say under which load figures were measured where that is not the planned one; None where it is.

    `levels`: the loads that were measured. `lengths`: mean tokens of prompts and answers, None where not counted.
    """
    # 1. The load is the same if the level was measured with lengths within a tenth.
    near = lengths is not None and all(
        abs(measured - planned) <= SAME_LENGTH * planned
        for measured, planned in zip(lengths, (load.input_tokens, load.output_tokens), strict=True)
    )
    planned = Load("closed", load.concurrency) if load.rate is None else Load("rate", load.rate)
    if not levels or (near and planned in levels):
        return None
    # 2. What was measured, and that nothing is predicted from it.
    counts = _level_words(levels)
    tokens_text = f"{round(lengths[0]):,}/{round(lengths[1]):,} tokens in/out" if lengths else "tokens not counted"
    return f"Measured at {counts}, {tokens_text}. Your load is another, {requests(load)}: no figure is adapted to it."


def _level_words(levels: Sequence[Load]) -> str:
    """Return `4, 16 streams`, `2, 8 requests/s`, or each in words where kinds of load differ."""
    loads = sorted(set(levels))
    first, last = ", ".join(f"{load.value:g}" for load in loads[:-1]), loads[-1].words
    if len({load.mode for load in loads}) == 1 and loads[-1].mode in {"closed", "rate"}:
        return f"{first}, {last}" if first else last
    return ", ".join(load.words for load in loads)


def evaluation_elsewhere(evaluation: Evaluation, load: PlannedLoad) -> str | None:
    """Return `measured_elsewhere` of an evaluation."""
    levels = evaluation.variants[0].levels if evaluation.variants else []
    return measured_elsewhere([level.load for level in levels], mean_tokens(levels), load)
