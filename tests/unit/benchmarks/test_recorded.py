"""docs/results.md: what it says is recorded is there, and what is not says so."""

from __future__ import annotations

import re

import pytest

from backend.settings import CHECKOUT

TEXT = (CHECKOUT / "docs" / "results.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("| ")][
    1:
]
RECORDS = [row for row in ROWS if len(row) == 3 and ("python" in row[1] or "make" in row[1])]
ELSEWHERE = {"not recorded yet", "prints JSON", ""}


def test_every_command_says_where_its_figures_are() -> None:
    assert len(RECORDS) > 10
    for _, command, recorded in RECORDS:
        assert recorded in ELSEWHERE or (CHECKOUT / recorded).is_file(), (command, recorded)


@pytest.mark.parametrize("file", sorted(set(re.findall(r"benchmarks/(?:results/)?[\w.]+\.(?:md|jsonl?|py)\b", TEXT))))
def test_every_file_that_is_named_is_there(file: str) -> None:
    """A record was named that nobody had made."""
    assert (CHECKOUT / file).is_file()
