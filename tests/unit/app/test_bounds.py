"""Every number that a page takes has a largest value, since the address of the page can ask for any."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.evaluate import option_fields
from backend.settings import CHECKOUT

SPREAD = {"UNSET", "option_fields.number_limits", "number_limits"}
"""What is spread into a call and holds the bounds."""


def number_inputs() -> Iterator[tuple[Path, ast.Call]]:
    for folder in ("app", "pages"):
        for path in sorted((CHECKOUT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr == "number_input"
                ):
                    yield path, node


def is_bounded(call: ast.Call) -> bool:
    """Label, least and most are the first arguments, where they are not written by name."""
    inputs = [call.args[2]] if len(call.args) > 2 else [each.value for each in call.keywords if each.arg == "max_value"]
    spread = {ast.unparse(each.value).partition("(")[0] for each in call.keywords if each.arg is None}
    return bool(spread & SPREAD) or any(not (isinstance(each, ast.Constant) and each.value is None) for each in inputs)


def test_every_number_of_a_page_has_a_largest_value() -> None:
    results = [*number_inputs()]
    unbounded = [f"{path.relative_to(CHECKOUT)}:{call.lineno}" for path, call in results if not is_bounded(call)]
    assert len(results) > 30 and not unbounded


@pytest.mark.parametrize("name", ["requests", "seconds", "repeats", "warmup_requests", "warmup_seconds"])
def test_what_decides_how_much_is_made_has_the_bounds_of_its_field(name: str) -> None:
    assert option_fields.number_limits(name)["max_value"] is not None
