"""The order of tests in a run that ends at a time: files stay whole, and each has its turn."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.sharing import begin_elsewhere, group

FILES = [f"tests/unit/test_{number}.py" for number in range(20)]
TESTS = [f"{file}::test_{letter}" for file in FILES for letter in "abc"]


@given(st.permutations(TESTS), st.integers(1, 2**40))
def test_another_beginning_loses_no_test_and_keeps_files_whole(tests: list[str], until: int) -> None:
    ordered = begin_elsewhere(tests, until)
    assert sorted(ordered) == sorted(tests)
    files = [group(test) for test in ordered]
    assert sum(before != after for before, after in pairwise(files)) == len(FILES) - 1
    for file in FILES:
        assert [test for test in ordered if group(test) == file] == [test for test in tests if group(test) == file]


def test_each_file_is_in_the_first_half_of_some_of_ten_runs() -> None:
    first_halves = [begin_elsewhere(TESTS, 1_796_000_000 + 9_973 * run)[: len(TESTS) // 2] for run in range(10)]
    assert {group(test) for half in first_halves for test in half} == set(FILES)


def test_nothing_begins_after_the_end_of_a_run() -> None:
    this_file = f"{Path(__file__)}::test_each_file_is_in_the_first_half_of_some_of_ten_runs"
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "--until", "1", this_file], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0
    assert "1 skipped" in ended.stdout
    assert "the time of this run was over" in ended.stdout
