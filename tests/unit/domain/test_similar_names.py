"""Names that are like the words of a person."""

from __future__ import annotations

import pytest

from backend.domain.similar_names import find_fitting, find_similar, nearest

NAMES = ["falcon-40b", "falcon-7b", "Llama-3-8B", "Llama-3-8B-Instruct", "SmolLM2-135M-Instruct"]


@pytest.mark.parametrize(
    ("words", "similar"),
    [
        ("smol", ["SmolLM2-135M-Instruct"]),
        ("llama 8b", ["Llama-3-8B", "Llama-3-8B-Instruct"]),
        ("LLAMA-3-8B", ["Llama-3-8B", "Llama-3-8B-Instruct"]),
        ("falcon-70b", ["falcon-40b", "falcon-7b"]),
        ("xyzzy", []),
        (" ", []),
    ],
)
def test_names_with_the_words_come_before_those_spelled_alike(words: str, similar: list[str]) -> None:
    assert sorted(find_similar(words, NAMES)) == sorted(similar)
    assert find_similar(words, NAMES)[:1] in (similar[:1], ["falcon-7b"])


def test_where_nothing_is_similar_the_first_three_are_named() -> None:
    assert nearest("xyzzy", NAMES) == NAMES[:3]
    assert nearest("smol", NAMES) == ["SmolLM2-135M-Instruct"]


def test_words_fit_the_names_that_have_them_all_and_a_whole_name_only_itself() -> None:
    names = {f"/models/{name}": name for name in NAMES}
    assert find_fitting("smol", names) == ["/models/SmolLM2-135M-Instruct"]
    assert find_fitting("llama-3-8b", names) == ["/models/Llama-3-8B"]
    assert find_fitting("falcon", names) == ["/models/falcon-40b", "/models/falcon-7b"]
    assert find_fitting("models", names) == find_fitting("", names) == []
