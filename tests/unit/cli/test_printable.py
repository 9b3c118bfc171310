"""What others wrote reaches a terminal as text: no escape of theirs colours, clears, renames or overwrites anything."""

from __future__ import annotations

import ast
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backend.cli.main import main
from backend.domain.planner.presets import Preset
from backend.present.tables.text import printable, table
from backend.service.models import models
from backend.service.presets import presets
from backend.settings import CHECKOUT
from tests.homes import open_home
from tests.tiny import tiny_llama

CLEARS, TITLE = "\x1b[2J\x1b[31m", "\x1b]0;owned\x07"
HIDDEN = set("\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
PIECES = "\x1b[]0;2Jm\x07\x9b\\ab\r\n"
ANY = st.text(st.characters(categories=("Cc", "Cf", "Cs", "Lu", "Po", "Zs", "Zl"))) | st.text(st.sampled_from(PIECES))


@given(ANY)
@example(CLEARS + TITLE)
@example("\x9b2J")
@example("\x1b\x1b[2J[2J")
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    shown = printable(text)
    assert not [c for c in shown if (unicodedata.category(c) in {"Cc", "Cs"} and c not in "\n\t") or c in HIDDEN]
    assert printable(shown) == shown and shown.encode("utf-8").decode() == shown


@given(st.text(st.characters(categories=("L", "N", "P", "S", "Zs"))))
def test_all_other_text_stays_as_it_is(text: str) -> None:
    assert printable(text) == text and printable(f"{text}\n\t{text}\r\n") == f"{text}\n\t{text}\n"


@given(st.lists(ANY, min_size=1, max_size=3))
def test_a_cell_of_a_table_is_one_line(cells: list[str]) -> None:
    assert len(table(("name",), [(cell,) for cell in cells]).split("\n")) == 2 + len(cells)


def run(home: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setenv("WHETSTONE_HOME", str(home))
    monkeypatch.setattr(sys, "argv", ["whetstone", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.process
def test_the_summary_of_a_preset_and_the_name_of_a_folder_are_shown_and_not_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home, folder = open_home(tmp_path / "home"), tmp_path / f"model{CLEARS}{TITLE}"
    fields = {"id": "team/odd", "model": "starter", "goal": "balanced", "recipe": {"name": "x", "steps": []}}
    presets.put(home, [Preset.model_validate({**fields, "summary": f"Good{CLEARS}{TITLE}."})])
    tiny_llama(folder)
    models.remember(home, str(folder), name="odd")
    for arguments, code in (
        (("presets", "show", "team/odd"), 0),
        (("models", "list"), 0),
        (("models", "inspect", str(folder)), 0),
        (("models", "inspect", str(folder / "none\x1b[5m")), 2),
        (("presets", "list", "--search", "odd"), 0),
    ):
        assert run(home.settings.home, monkeypatch, *arguments) == code
        output = capsys.readouterr()
        assert output.out + output.err and not set("\x1b\x07\x9b") & set(output.out + output.err), arguments


def test_the_command_line_writes_in_one_place() -> None:
    """Calls of print and echo elsewhere would pass what others wrote to the terminal as it is."""
    writes, written = {"print", "typer.echo", "typer.secho", "sys.stdout.write"}, []
    for path in sorted((CHECKOUT / "backend" / "cli").rglob("*.py")):
        calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
        written += [path.name for call in calls if ast.unparse(call.func) in writes]
    assert set(written) == {"output.py"}
