"""Seeded faults over what lives at SageMaker: jobs (`job_life`) and endpoints (`endpoint_life`), at one account in one process.

A life's checker looks at the account, and at what we recorded, when all is over, and knows nothing of what was injected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pytest

from tests.fakes.sagemaker.account import Account
from tests.fakes.sagemaker.pointed import point
from tests.fakes.sagemaker.server import serving

ANSWERS: dict[str, str | int] = {
    "throttled": "ThrottlingException", "500": 500, "503": 503, "broken off": "cut", "answer lost": "lost",
    "request lost": "drop", "credentials expired": "ExpiredTokenException",
}  # fmt: skip


@dataclass
class Tally:
    """Of one kind of fault."""

    seeds: int = 0
    injected: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    doubled: int = 0
    unnoticed: int = 0


class Life(Protocol):
    """Of what one seed is about, with one kind of fault."""

    kind: str

    def run(self) -> None: ...

    def check(self, tally: Tally) -> str | None:
        """Adds to the tally; what is wrong, in words."""

    def leave(self) -> None: ...


Lives = Callable[[Account, Path], AbstractContextManager[Callable[[int], Life]]]


def campaign(folder: Path, seeds: range, lives: Lives, kinds: Sequence[str]) -> tuple[dict[str, Tally], list[str]]:
    """The tallies by kind of fault, and what is wrong."""
    tallies, wrong = {kind: Tally() for kind in kinds}, []
    account = Account()
    with pytest.MonkeyPatch.context() as patch, serving(account) as url:
        point(patch, folder, url)
        patch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.0)
        with lives(account, folder) as born:
            for seed in seeds:
                life = born(seed)
                life.run()
                wrong += filter(None, [life.check(tallies[life.kind])])
                life.leave()
    return tallies, wrong


def table(tallies: dict[str, Tally]) -> str:
    """As it is printed."""
    rows = [("fault", "seeds", "injected", "ended as", "lost", "doubled", "unnoticed")]
    for kind, each in tallies.items():
        ended = ", ".join(f"{number} {state}" for state, number in sorted(each.ended.items()))
        rows.append((kind, *map(str, (each.seeds, each.injected, ended, each.lost, each.doubled, each.unnoticed))))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
