"""A workload on the page Evaluate: previewed, uploaded, read once, and refused with what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backend.domain.errors import InvalidWorkload
from backend.service import Workspace
from backend.service.evaluations import workloads
from tests import studio
from tests.helpers.evaluation_pages import URL_A


def test_a_workload_is_previewed_with_its_lengths(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", variants=URL_A)
    at.toggle(key="evaluate_preview").set_value(True).run()
    studio.check(at)
    assert "Prompts" in studio.says(at)
    assert "Characters" in at.dataframe[0].value.columns


def test_an_uploaded_workload_is_kept_and_chosen_by_its_name(studio_home: Workspace) -> None:
    saved = workloads.save(studio_home, "../my <b>chats</b>.jsonl", b'{"prompt": "hello"}\n')
    assert workloads.save(studio_home, "../my <b>chats</b>.jsonl", b'{"prompt": "hello"}\n') == saved
    assert workloads.list_saved(studio_home)[saved].parent == studio_home.settings.home / "workloads"
    at = studio.open_page("evaluate", variants=URL_A, workload=saved)
    assert saved in [box.value for box in at.selectbox]
    removed = studio.open_page("evaluate", variants=URL_A, workload="gone")
    assert any("no workload gone" in box.value for box in removed.warning)


def test_a_list_drawn_before_an_upload_undoes_no_choice(studio_home: Workspace) -> None:
    """A browser that is busy still sends the list that stood there when the file was taken."""
    saved = workloads.save(studio_home, "mine.jsonl", b'{"prompt": "hello"}\n')
    at = studio.open_page("evaluate", variants=URL_A)
    drawn_before = at.selectbox(key="evaluate_workload_short-questions")
    at.query_params["workload"] = saved
    drawn_before.set_value("chat").run()
    assert at.selectbox(key=f"evaluate_workload_{saved}").value == saved
    at.selectbox(key=f"evaluate_workload_{saved}").set_value("chat").run()
    assert at.selectbox(key="evaluate_workload_chat").value == "chat", "a choice of a person's own"


def test_token_lengths_are_those_of_the_first_variants_tokenizer(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", variants=f"starter,{URL_A}", evaluate_preview="true")
    text = studio.says(at)
    assert "tokens" in text and "by the tokenizer of starter" in text
    assert all(
        0 < tokens < characters
        for tokens, characters in zip(at.dataframe[0].value["Tokens"], at.dataframe[0].value["Characters"], strict=True)
    )
    result = workloads.facts_for(studio_home, "starter-code", None)
    assert (
        workloads.token_lengths(studio_home, result, URL_A) is None
        and workloads.token_lengths(studio_home, result, "nowhere") is None
    )


def test_a_workload_is_read_once_until_its_file_changes(studio_home: Workspace, tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "one"}\n')
    first = workloads.facts_for(studio_home, str(file), None)
    assert workloads.facts_for(studio_home, str(file), None) is first
    file.write_text('{"prompt": "one"}\n{"prompt": "another"}\n')
    changed = workloads.facts_for(studio_home, str(file), None)
    assert changed.prompts == 2 and len(changed.first) == 2


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"prompt": "a",}', r"line 2: it is not JSON \(column"),
        (b'{"prompt": "a"', "line 2: it is not JSON"),
        (b'{"prompt": "\xff"}', r"not UTF-8 text \(line 2, byte 29"),
        (b'{"prompt": "\\ud800"}', "line 2: it has half a character"),
        (b'{"prompt": 7}', 'line 2: there is no text in "prompt"'),
        (b'{"prompt": "a", "max_tokens": true}', "line 2: its longest answer"),
        (b"[" * 100_000, "line 2: it is not JSON"),
    ],
)
def test_a_broken_line_is_named_with_what_is_wrong(studio_home: Workspace, line: bytes, says: str) -> None:
    with pytest.raises(InvalidWorkload, match=says):
        workloads.save(studio_home, "mine.jsonl", b'{"prompt": "a"}\n' + line + b"\n")
    assert workloads.list_saved(studio_home) == {}


def test_a_broken_file_is_told_through_the_page_and_nothing_is_kept(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", variants=URL_A)
    at.file_uploader(key="evaluate_file").set_value(("<b>.jsonl", b'{"prompt": \n', "application/jsonl")).run()
    studio.check(at)
    for _ in range(2):
        assert "its only line cannot be used" in studio.says(at) and "line 1: it is not JSON" in studio.says(at)
        at.run()
    assert workloads.list_saved(studio_home) == {}


def test_a_broken_upload_is_refused_and_nothing_is_kept(studio_home: Workspace) -> None:
    with pytest.raises(InvalidWorkload, match="line 2"):
        workloads.save(studio_home, "mine.jsonl", b'{"prompt": "a"}\n{"prompt": \n')
    assert workloads.list_saved(studio_home) == {}


def test_a_file_is_uploaded_through_the_page(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", variants=URL_A)
    at.file_uploader(key="evaluate_file").set_value(
        ("chats.jsonl", b'{"prompt": "hello"}\n', "application/jsonl")
    ).run()
    studio.check(at)
    (remaining,) = workloads.list_saved(studio_home)
    assert studio.param(at, "workload") == remaining


def test_a_table_is_uploaded_with_its_columns_named(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", variants=URL_A)
    table = b"id,wording,length\n1,What is it?,9\n2,Why?,8\n"
    at.file_uploader(key="evaluate_file").set_value(("mine.csv", table, "text/csv")).run()
    studio.check(at)
    assert workloads.list_saved(studio_home) == {}
    at.button(key="evaluate_columns").click().run()
    assert "id of mine.csv holds numbers and no text" in studio.says(at).replace("`", "").replace("\\", "")
    assert workloads.list_saved(studio_home) == {}

    at = studio.open_page("evaluate", variants=URL_A)
    at.file_uploader(key="evaluate_file").set_value(("mine.csv", table, "text/csv")).run()
    at.selectbox(key="evaluate_column_prompt").select("wording")
    at.selectbox(key="evaluate_column_tokens").select("length")
    at.button(key="evaluate_columns").click().run()
    studio.check(at)
    (remaining,) = workloads.list_saved(studio_home)
    assert studio.param(at, "workload") == remaining
    lines = workloads.list_saved(studio_home)[remaining].read_text().splitlines()
    assert json.loads(lines[0]) == {"prompt": "What is it?", "max_tokens": 9}


def test_a_built_in_workload_is_previewed_by_the_first_variants_tokenizer(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", variants="starter", workload="question-answering", evaluate_preview="true")
    studio.check(at)
    tokens = at.dataframe[0].value["Tokens"]
    assert tokens.min() >= 500 and tokens.max() <= 1000
