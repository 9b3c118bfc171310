"""The bundled prompts and texts: enough of them, varied, and nothing that is scored has been seen in calibration."""

import json
import re
from itertools import combinations
from typing import Any

from backend.settings import ASSETS

KINDS = {"writing", "question", "summary", "extraction", "code"}
RUN = 8
"""Words in a row that no two texts may share."""


def rows(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ASSETS / path).read_text().splitlines()]


LOAD, CALIBRATION, HELD_OUT = (
    rows(path) for path in ("workloads/assistant.jsonl", "text/chat_calibration.jsonl", "text/chat_held_out.jsonl")
)


def runs(texts: list[str]) -> set[tuple[str, ...]]:
    names: set[tuple[str, ...]] = set()
    for text in texts:
        words = re.findall(r"\w+", text.lower())
        names |= {tuple(words[start : start + RUN]) for start in range(len(words) - RUN + 1)}
    return names


def test_no_two_texts_share_eight_words_in_a_row() -> None:
    texts = {
        "load": [row["prompt"] for row in LOAD],
        "calibration": [text for row in CALIBRATION for text in (row["prompt"], row["answer"])],
        "held out": [text for row in HELD_OUT for text in (row["prompt"], row["answer"])],
        "prose": [(ASSETS / "text" / "prose_held_out.txt").read_text()],
    }
    by_name = {name: runs(text) for name, text in texts.items()}
    shared = {(one, other): by_name[one] & by_name[other] for one, other in combinations(by_name, 2)}
    assert not any(shared.values()), {pair: runs for pair, runs in shared.items() if runs}
    code = runs([(ASSETS / "text" / name).read_text() for name in ("calibration.txt", "held_out.txt")])
    assert not any(by_name[name] & code for name in by_name)


def test_there_are_enough_prompts_of_every_kind_and_length() -> None:
    assert len(LOAD) >= 128 and len(CALIBRATION) == len(HELD_OUT) == 64
    for group in (LOAD, CALIBRATION, HELD_OUT):
        assert len({row["prompt"] for row in group}) == len(group)
        for start in range(0, len(group), 32):
            assert {row["kind"] for row in group[start : start + 32]} == KINDS or len(group) - start < 32
    lengths = sorted(len(row["prompt"].split()) for row in LOAD)
    assert lengths[len(lengths) // 10] < 20 and lengths[-len(lengths) // 10] > 120 and lengths[-1] < 400
