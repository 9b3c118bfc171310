"""The breaks that the campaign of faults is tried with are of the product as it is, and leave it Python."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from backend.settings import CHECKOUT
from benchmarks.fault_mutants import MUTANTS, Mutant, changed


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_break_changes_one_place_of_the_product(mutant: Mutant) -> None:
    source = (Path(CHECKOUT) / mutant.path).read_text()
    result = changed(mutant, source)
    assert result != source and ast.parse(result)


def test_a_break_whose_place_is_gone_is_refused() -> None:
    with pytest.raises(ValueError, match="has 0 times what `a change names no token` changes"):
        changed(next(one for one in MUTANTS if one.name == "a change names no token"), "")
