"""Prompts to train drafts on: what is read, what is held out, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backend.catalog.text import training_prompts
from backend.domain.errors import InvalidWorkload
from backend.settings import ASSETS

ASSISTANT_PROMPTS = [
    json.loads(line)["prompt"] for line in (ASSETS / "workloads" / "assistant.jsonl").read_text().splitlines()
]
OWN = [
    f"Which of the {number} lighthouses north of Bergen was painted green, and who climbed it?" for number in range(9)
]


def written(folder: Path, texts: list[str]) -> str:
    path = folder / "own.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return str(path)


def test_prompts_are_read_once_each_without_the_held_out_ones(tmp_path: Path) -> None:
    content = training_prompts.read(
        written(tmp_path, [*OWN, OWN[0], ASSISTANT_PROMPTS[3], ASSISTANT_PROMPTS[4].upper()]), tmp_path
    )
    assert list(content.texts) == OWN
    assert content.left_out == 3


def test_a_text_file_has_a_prompt_a_paragraph(tmp_path: Path) -> None:
    path = tmp_path / "own.txt"
    path.write_text("\n\n".join(OWN) + "\n\n\n")
    assert list(training_prompts.read(str(path), tmp_path).texts) == OWN


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        ([""], "own.jsonl has no prompts: give a JSON object"),
        (ASSISTANT_PROMPTS, "Every prompt of own.jsonl is held out for evaluations to measure on: give others"),
        (OWN[:4], "own.jsonl leaves 4 prompts, and a training takes at least 8: give more"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(tmp_path: Path, texts: list[str], sentence: str) -> None:
    with pytest.raises(InvalidWorkload) as refused:
        training_prompts.read(written(tmp_path, texts), tmp_path)
    assert str(refused.value).startswith(sentence)


def test_the_bundled_prompts_are_apart_from_what_is_held_out(tmp_path: Path) -> None:
    code = training_prompts.read(None, tmp_path)
    (tmp_path / "chat_template.jinja").write_text("")
    chat = training_prompts.read(None, tmp_path)
    assert len(chat.texts) == 64
    assert len(code.texts) > 500
