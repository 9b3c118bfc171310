"""A chat model is asked chat prompts in its own template unless something else was chosen; others are asked code."""

import shutil
from pathlib import Path

import pytest

from backend.domain.evaluation.document import EvaluateOptions, Variant
from backend.service.evaluations import evaluations, workloads
from backend.settings import ASSETS
from tests.homes import open_home


def variant(folder: Path, *, chat: bool) -> Variant:
    folder.mkdir()
    (folder / "tokenizer_config.json").write_text('{"chat_template": "x"}' if chat else "{}")
    return Variant(
        name=folder.name, source=str(folder), kind="model", model_path=str(folder), original_path=str(folder)
    )


@pytest.mark.parametrize(
    ("values", "others", "expected"),
    [
        ({}, True, ("assistant", "chat")),
        ({"workload": "assistant"}, True, ("assistant", "chat")),
        ({"workload": "starter-code"}, True, ("starter-code", "completions")),
        ({}, False, ("starter-code", "completions")),
    ],
)
def test_the_load_fits_the_models(
    tmp_path: Path, values: dict[str, str], others: bool, expected: tuple[str, str]
) -> None:
    variants = [variant(tmp_path / "one", chat=True), variant(tmp_path / "two", chat=others)]
    chosen = workloads.fit_to_variants(EvaluateOptions.model_validate(values), variants)
    assert (chosen.workload, chosen.endpoint) == expected


def test_a_screen_suggests_code_for_the_starter_alone(tmp_path: Path) -> None:
    home, base = open_home(tmp_path / "home"), tmp_path / "base"
    shutil.copytree(ASSETS / "starter" / "target", base)
    suggested = [workloads.default_workload(home, source) for source in ("starter", str(base), "http://127.0.0.1:9")]
    assert suggested == ["starter-code", "short-questions", "short-questions"]


def test_an_address_alone_keeps_what_was_chosen() -> None:
    address = Variant(name="x", source="http://x", kind="url", url="http://x")
    assert workloads.fit_to_variants(EvaluateOptions(), [address]) == EvaluateOptions()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"concurrency": (1,)}, "recipe"),
        ({"concurrency": (1, 4)}, "per-run"),
        ({"concurrency": (1, 4), "prefix_cache": "on"}, "on"),
        ({"concurrency": (1, 64), "requests": 200}, "recipe"),
    ],
)
def test_too_few_chat_prompts_repeat_in_runs_that_keep_their_own_prefixes(
    tmp_path: Path, values: dict[str, object], expected: str
) -> None:
    """The last asks for more in one run than there are, which `check` refuses."""
    chosen = workloads.fit_to_variants(EvaluateOptions.model_validate(values), [variant(tmp_path / "one", chat=True)])
    assert chosen.prefix_cache == expected


def test_what_an_address_serves_is_not_asked_for_prefixes_of_its_own(tmp_path: Path) -> None:
    """Its server need not know vLLM's cache_salt."""
    address = Variant(name="x", source="http://x", kind="url", url="http://x")
    chosen = workloads.fit_to_variants(
        EvaluateOptions(concurrency=(1, 4)), [variant(tmp_path / "one", chat=True), address]
    )
    assert chosen.prefix_cache == "recipe"


@pytest.mark.parametrize(
    ("workload", "others", "requested", "expected"),
    [
        ("question-answering", "model", None, True),
        ("question-answering", "url", None, False),
        ("question-answering", "model", False, False),
        ("starter-code", "model", None, False),
        ("starter-code", "model", True, True),
    ],
)
def test_answers_to_a_generated_load_have_its_length_where_all_servers_are_ours(
    tmp_path: Path, workload: str, others: str, requested: bool | None, expected: bool
) -> None:
    """A model that ends its answers at once would else make a load of empty ones."""
    home, first = open_home(tmp_path / "home"), variant(tmp_path / "one", chat=False)
    second = Variant(name="b", source="http://127.0.0.1:1", kind="url", url="http://127.0.0.1:1")
    variants = (first, second if others == "url" else first.model_copy(update={"name": "b"}))
    options = EvaluateOptions(workload=workload, ignore_eos=requested, quality=False)
    remaining = evaluations.freeze(home, evaluations.EvaluateSpec(variants=variants, options=options))
    assert remaining.options.ignore_eos is expected
