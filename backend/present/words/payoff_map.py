"""A payoff map in words: which acceptance pays at how many streams, how sure that is, and what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from backend.domain.figures import counted, figure, listed, streams, times
from backend.domain.planner.draft_payoff import BreakEven, DraftShape, PayoffMap


def answers(payoff: PayoffMap, draft: DraftShape) -> list[str]:
    """Return one sentence for each number of streams that was measured."""
    return [answer(payoff, draft, concurrency) for concurrency in payoff.streams]


def answer(payoff: PayoffMap, draft: DraftShape, concurrency: int) -> str:
    """`At 4 streams it pays if at least 47% of draft tokens are accepted (95% 41% to 54%), with 2 draft tokens.`"""
    least = payoff.break_even(concurrency, draft)
    if least is None:
        return f"At {streams(concurrency)} it cannot pay: even a draft that is always right would be slower than none."
    share = f"{least.acceptance:.0%} of draft tokens are accepted{_interval(least)}"
    return f"At {streams(concurrency)} it pays if at least {share}, with {_draft_tokens(least.tokens)}."


def predictions(payoff: PayoffMap, draft: DraftShape, lengths: Sequence[float]) -> list[str]:
    """Return one sentence for each number of streams about a draft of known accepted length.

    `lengths`: mean tokens per step with 1, 2, ... draft tokens.
    """
    return [prediction(payoff, draft, lengths, concurrency) for concurrency in payoff.streams]


def prediction(payoff: PayoffMap, draft: DraftShape, lengths: Sequence[float], concurrency: int) -> str:
    """`At 4 streams it will hardly pay: 0.95x (95% 0.82 to 1.1) at best, with 1 draft token.`"""
    tokens, gain = payoff.best_known(concurrency, draft, lengths)
    interval = payoff.interval(gain)
    low, high = interval or (gain, gain)
    if low > 1:
        outcome = "pays"
    elif high <= 1:
        outcome = "does not pay"
    else:
        outcome = "may pay" if gain > 1 else "will hardly pay"
    return f"At {streams(concurrency)} it {outcome}: {times(gain, interval)} at best, with {_draft_tokens(tokens)}."


def measured(lengths: Sequence[float]) -> str:
    """`On held-out answers this draft gave 1.33 and 1.42 tokens per step with 1 and 2 draft tokens:`"""
    per_step = listed([figure(length) for length in lengths])
    draft_tokens = listed([str(count) for count in range(1, len(lengths) + 1)])
    return f"On held-out answers this draft gave {per_step} tokens per step with {draft_tokens} draft tokens:"


def subject(payoff: PayoffMap, draft: DraftShape) -> str:
    """`A draft of 5.0 million parameters for smollm2`."""
    return f"A draft of {millions(draft.parameters)} parameters for {payoff.model}"


def millions(parameters: int) -> str:
    return f"{parameters / 1e6:,.1f} million"


def _interval(least: BreakEven) -> str:
    if least.interval is None:
        return ""
    low, high = least.interval
    return f" (95% {low:.0%} to {high:.0%})" if high is not None else f" (95%: at least {low:.0%}, perhaps never)"


def _draft_tokens(tokens: int) -> str:
    return counted(tokens, "draft token")


def sureness(payoff: PayoffMap, draft: DraftShape) -> str:
    """Return how wrong the map may be, and whether this draft is beyond what was measured."""
    servers = len({(point.tokens, point.draft) for point in payoff.points if point.draft})
    if payoff.error is None:
        sentences = ["Too few servers were measured to say how wrong the map may be."]
    else:
        share = f"{payoff.error - 1:.0%} (95%)"
        sentences = [f"Each of {servers} servers was predicted from the others: the map's gains are within {share}."]
    if payoff.formula_error is not None:
        sentences.append(
            f"At a prescribed acceptance, measured gains differed from the formula by {payoff.formula_error:.0%}."
        )
    if draft.parameters > 1.2 * payoff.largest:
        sentences.append(f"No draft above {millions(payoff.largest)} was measured: this one is an extrapolation.")
    return " ".join(sentences)


def provenance(payoff: PayoffMap) -> str:
    """Return where and when the map was measured, and how long it took."""
    where = f"{payoff.key.processor}, {counted(payoff.key.cores, 'core')}"
    return f"Measured {payoff.measured_at[:10]} on {where}, vLLM {payoff.key.vllm}, in {payoff.seconds / 60:.0f} min."
