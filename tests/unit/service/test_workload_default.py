"""A chat model is asked chat prompts in its own template unless something else was chosen; others are asked code."""

from pathlib import Path

import pytest

from backend.domain.evaluation.document import EvaluateOptions, Variant
from backend.service.evaluations import workloads


def variant(folder: Path, *, chat: bool) -> Variant:
    folder.mkdir()
    (folder / "tokenizer_config.json").write_text('{"chat_template": "x"}' if chat else "{}")
    return Variant(name=folder.name, source=str(folder), kind="model", model_path=str(folder), original_path=str(folder))


@pytest.mark.parametrize(
    ("given", "others", "expected"),
    [
        ({}, True, ("assistant", "chat")),
        ({"workload": "assistant"}, True, ("assistant", "chat")),
        ({"workload": "starter-code"}, True, ("starter-code", "completions")),
        ({}, False, ("starter-code", "completions")),
    ],
)
def test_the_load_fits_the_models(tmp_path: Path, given: dict[str, str], others: bool, expected: tuple[str, str]) -> None:
    found = [variant(tmp_path / "one", chat=True), variant(tmp_path / "two", chat=others)]
    chosen = workloads.fitting(EvaluateOptions.model_validate(given), found)
    assert (chosen.workload, chosen.endpoint) == expected


def test_an_address_alone_keeps_what_was_chosen() -> None:
    address = Variant(name="x", source="http://x", kind="url", url="http://x")
    assert workloads.fitting(EvaluateOptions(), [address]) == EvaluateOptions()
