"""Requests of two runs are paired by what they asked, and asked with the same seed, whichever answers end first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from backend.domain.load.load import Load
from backend.domain.load.order import by_request_key, request_pairs
from backend.domain.load.records import TURN_SEEDS, LoadPlan, RequestRecord
from backend.domain.workload.workload import Prompt
from backend.endpoint import parse_address
from backend.evaluate.load.level import ClosedLevel
from backend.evaluate.load.parse import make_record
from backend.evaluate.load.payload import Payloads, encode
from backend.evaluate.load.stream import Exchange

SEED = 100
TALKS = [
    {"turns": ["a0", "a1", "a2"], "system": None},
    {"turns": ["b0"], "system": None},
    {"turns": ["c0", "c1"], "system": None},
]
SINGLE = [{"prompt": "one"}, {"prompt": "two"}]
Orders = st.lists(st.integers(0, 11), max_size=60)


def drive(rows: Sequence[dict[str, Any]], order: Sequence[int], words: str = "said", **changed: Any) -> list[Exchange]:
    """A closed level without a server: of the requests under way, `order` says which is answered next."""
    fields = {
        "url": "http://a",
        "model": "m",
        "load": Load("closed", 3),
        "requests": 20,
        "warmup_requests": 2,
        "seed": SEED,
        "prompts": "-",
    }
    plan = LoadPlan.model_validate({**fields, **changed})
    payloads = Payloads(
        plan,
        [Prompt.model_validate({"prompt": row.get("turns", ["-"])[0], **row}) for row in rows],
        parse_address(plan.url),
        None,
        "none",
    )
    level = ClosedLevel(plan, payloads, break_off=False)
    under_way = {stream: level.next(stream) for stream in range(plan.streams)}
    turn = 0
    while under_way:
        stream = sorted(under_way)[(order[turn % len(order)] if order else 0) % len(under_way)]
        exchange, turn = under_way.pop(stream), turn + 1
        assert exchange is not None
        answer(exchange, words, float(turn))
        level.ended(exchange)
        level.add_answer(exchange, encode(words))
        following = level.next(stream)
        if following is not None:
            under_way[stream] = following
    return level.exchanges


def answer(exchange: Exchange, words: str, at: float) -> None:
    body = json.dumps({"choices": [{"text": words, "finish_reason": "stop"}]}).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    exchange.reads, exchange.times, exchange.sent, exchange.end = [head + body], [at], at - 1, at
    exchange.status, exchange.http_status = "done", 200


def records(exchanges: Sequence[Exchange]) -> list[RequestRecord]:
    return [make_record(exchange) for exchange in exchanges]


def measured(exchanges: Sequence[Exchange]) -> list[tuple[int, int | None]]:
    return [(exchange.prompt, exchange.seed) for exchange in exchanges if not exchange.warm]


@given(Orders)
def test_measured_request_k_has_the_kth_prompt_and_seed_behind_those_of_warm_up(order: list[int]) -> None:
    warm = 3 * 2
    assert measured(drive(SINGLE, order)) == [(k % 2, SEED + k) for k in range(warm, warm + 20)]
    many = [{"prompt": str(number)} for number in range(40)]
    outcome = drive(many, order, first_line=9)
    assert sorted(each.prompt for each in outcome) == [*range(9, 9 + warm + 20)], "no line twice"
    assert {each.prompt for each in outcome if each.warm} == {*range(9, 9 + warm)}
    assert {seed for _, seed in measured(drive(SINGLE, order, seed=None))} == {None}


def test_a_turn_has_the_seed_of_its_session_and_its_place_there() -> None:
    outcome = drive(TALKS, [], load=Load("closed", 1), warmup_requests=0, requests=8)
    assert [(own.prompt, own.turn, own.seed) for own in outcome] == [
        (0, 0, SEED),
        (0, 1, SEED + TURN_SEEDS),
        (0, 2, SEED + 2 * TURN_SEEDS),
        (1, 0, SEED + 1),
        (2, 0, SEED + 2),
        (2, 1, SEED + 2 + TURN_SEEDS),
        (0, 0, SEED + 3),
        (0, 1, SEED + 3 + TURN_SEEDS),
    ]


@given(Orders, Orders)
def test_two_runs_are_asked_the_same_in_whatever_order_answers_end(one: list[int], other: list[int]) -> None:
    ours, theirs = drive(TALKS, one, "ours"), drive(TALKS, other, "theirs")
    seeds = [{each.index: each.seed for each in run} for run in (ours, theirs)]
    first, second = (by_request_key(records(run)) for run in (ours, theirs))
    assert len(first) == len(ours) and len(second) == len(theirs), "no two requests of a run ask the same"
    for request in first.keys() & second.keys():
        assert seeds[0][first[request].index] == seeds[1][second[request].index]
        assert (first[request].prompt, first[request].turn) == (second[request].prompt, second[request].turn)


@given(Orders, Orders)
def test_pairs_are_measured_and_of_one_line_and_turn(one: list[int], other: list[int]) -> None:
    ours, theirs = records(drive([*TALKS, *SINGLE], one, "ours")), records(drive([*TALKS, *SINGLE], other, "theirs"))
    rows = list(request_pairs(ours, theirs))
    assert rows, "both begin with the same sessions"
    for first, second in rows:
        assert (first.prompt, first.turn, first.text, second.text) == (second.prompt, second.turn, "ours", "theirs")
        assert not first.warm and not second.warm
    assert len({second.index for _, second in rows}) == len({first.index for first, _ in rows}) == len(rows)


def test_the_order_of_issue_pairs_nothing() -> None:
    """Two streams; in the first run the first of them is answered before the other, in the second run after it."""
    ours = records(drive(TALKS, [0], load=Load("closed", 2), warmup_requests=0, requests=6))
    theirs = records(drive(TALKS, [1], load=Load("closed", 2), warmup_requests=0, requests=6))
    by_index = [(one.prompt, one.turn) == (other.prompt, other.turn) for one, other in zip(ours, theirs, strict=True)]
    assert by_index == [True, True, False, False, False, False]
    assert [(one.index, other.index) for one, other in request_pairs(ours, theirs)] == [(0, 0), (1, 1), (4, 2), (5, 3)]


def test_a_request_without_a_partner_or_an_answer_is_no_pair() -> None:
    ours = records(drive(SINGLE, [], requests=4, warmup_requests=0))
    theirs = [each.model_copy(update={"status": "timeout"} if each.index == 1 else {}) for each in ours[:3]]
    assert [(first.index, second.index) for first, second in request_pairs(ours, theirs)] == [(0, 0), (2, 2)]
