"""A payoff map in words: which acceptance pays at how many streams, how sure that is, and what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from backend.domain.figures import counted, figure, listed, streams, times
from backend.domain.planner.draft_payoff import BreakEven, DraftShape, PayoffMap


def answers(found: PayoffMap, draft: DraftShape) -> list[str]:
    """A sentence for each number of streams that was measured."""
    return [answer(found, draft, each) for each in found.streams]


def answer(found: PayoffMap, draft: DraftShape, at: int) -> str:
    """`At 4 streams it pays from an acceptance of 47% on (95% 41% to 54%), at 2 tokens a guess.`"""
    least = found.break_even(at, draft)
    if least is None:
        return f"At {streams(at)} it cannot pay: even a draft that is always right would be slower than none."
    return f"At {streams(at)} it pays from an acceptance of {least.acceptance:.0%} on{_interval(least)}, at {_guess(least.tokens)}."


def predictions(found: PayoffMap, draft: DraftShape, lengths: Sequence[float]) -> list[str]:
    """What a draft pays whose mean tokens a step at 1, 2, ... proposed were measured: a sentence for each number of
    streams."""
    return [prediction(found, draft, lengths, each) for each in found.streams]


def prediction(found: PayoffMap, draft: DraftShape, lengths: Sequence[float], at: int) -> str:
    """`At 4 streams it will hardly pay: 0.95x (95% 0.82 to 1.1) at best, at 1 token a guess.`"""
    tokens, gain = found.best_known(at, draft, lengths)
    interval = found.interval(gain)
    low, high = interval or (gain, gain)
    said = "pays" if low > 1 else "does not pay" if high <= 1 else "may pay" if gain > 1 else "will hardly pay"
    return f"At {streams(at)} it {said}: {times(gain, interval)} at best, at {_guess(tokens)}."


def measured(lengths: Sequence[float]) -> str:
    """`On answers set aside from its training this draft gave 1.33 and 1.42 tokens a step, at 1 and 2 a guess:`"""
    given, guessed = listed([figure(each) for each in lengths]), listed([str(k) for k in range(1, len(lengths) + 1)])
    return f"On answers set aside from its training this draft gave {given} tokens a step, at {guessed} a guess:"


def subject(found: PayoffMap, draft: DraftShape) -> str:
    """`A draft of 5.0 million parameters for smollm2`."""
    return f"A draft of {millions(draft.parameters)} parameters for {found.model}"


def millions(parameters: int) -> str:
    return f"{parameters / 1e6:,.1f} million"


def _interval(least: BreakEven) -> str:
    if least.interval is None:
        return ""
    low, high = least.interval
    return f" (95% {low:.0%} to {high:.0%})" if high is not None else f" (95%: {low:.0%} at the least, perhaps never)"


def _guess(tokens: int) -> str:
    return f"{counted(tokens, 'token')} a guess"


def sureness(found: PayoffMap, draft: DraftShape) -> str:
    """What the model's error is, and where it was stretched."""
    servers = len({(point.tokens, point.draft) for point in found.points if point.draft})
    if found.error is None:
        said = "Too few servers were measured to say how wrong the map may be."
    else:
        said = (
            f"Each of {servers} servers was predicted from the others; by those errors the map's gains are within "
            f"{found.error - 1:.0%} (95%)."
        )
    if (formula := found.formula_error) is not None:
        said = f"{said} With acceptance made as wanted, measured gains lay {formula:.0%} from the formula's."
    beyond = draft.parameters > 1.2 * found.largest
    far = f" No draft above {millions(found.largest)} was measured: this one is read beyond that." if beyond else ""
    return f"{said}{far}"


def provenance(found: PayoffMap) -> str:
    """Where and when, and how."""
    where = f"{found.key.processor}, {counted(found.key.cores, 'core')}"
    return f"Measured {found.measured_at[:10]} on {where}, vLLM {found.key.vllm}, in {found.seconds / 60:.0f} min."
