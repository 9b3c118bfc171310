"""What the demo tries, by model and processor: valid recipes, the likeliest to win first; and the load that it asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.catalog.cards import gguf
from backend.domain.evaluation.blocks import stopping_rule
from backend.domain.rules import check
from backend.domain.rules.target_facts import TargetFacts
from backend.hardware import probe
from backend.service.evaluations import evaluations, workloads
from backend.service.models import models
from backend.service.plans import cases
from backend.service.studio import demo, demo_model
from tests import gguf_files
from tests.helpers.model_sizes import SMOLLM2
from tests.homes import open_home
from tests.tiny import tiny_llama

AMX, VNNI, PLAIN = ("avx512_vnni", "amx_int8", "amx_bf16"), ("avx2", "avx512_vnni"), ("avx2",)


@pytest.mark.parametrize(
    ("features", "gpu", "tried"),
    [
        (AMX, False, ("smoothquant + adaptive n-gram", "awq 4-bit", "adaptive n-gram")),
        (VNNI, False, ("smoothquant + adaptive n-gram", "adaptive n-gram", "smoothquant")),
        (("avx2", "i8mm"), False, ("smoothquant + adaptive n-gram", "adaptive n-gram", "smoothquant")),
        (PLAIN, False, ("adaptive n-gram", "smoothquant + adaptive n-gram", "smoothquant")),
        (PLAIN, True, ("smoothquant + adaptive n-gram", "awq 4-bit", "adaptive n-gram")),
    ],
)
def test_what_is_tried_depends_on_the_processor(features: tuple[str, ...], gpu: bool, tried: tuple[str, ...]) -> None:
    names = demo.candidate_names(starter=False, gpu=gpu, features=features)
    assert names[: demo.MOST] == tried
    facts = TargetFacts(hardware="cuda" if gpu else "cpu", features=features)
    assert all(check.check_recipe(SMOLLM2, demo.RECIPES[name], facts).valid for name in names if not gpu)


@pytest.mark.parametrize("features", [AMX, VNNI, PLAIN])
def test_the_starter_is_tried_with_its_draft_everywhere(features: tuple[str, ...]) -> None:
    assert demo.candidate_names(starter=True, gpu=False, features=features) == ("w8a8", "draft", "w8a8 + draft")


@pytest.mark.process
def test_only_what_is_valid_here_is_tried(tmp_path: Path) -> None:
    home, odd = open_home(tmp_path / "home"), tiny_llama(tmp_path / "odd", hidden=96, heads=4, intermediate=160)
    card = models.resolve(home, str(odd))
    assert not cases.resolve(home, card, demo.RECIPES["awq 4-bit"]).works
    tried = [recipe.name for recipe in demo.valid_recipes(home, card)]
    assert "awq 4-bit" not in tried and len(tried) == (2 if probe.cores() < demo.FEW_CORES else 3)
    assert [recipe.name for recipe in demo.valid_recipes(home, demo_model.starter_card(home))] == [
        "w8a8",
        "draft",
        "w8a8 + draft",
    ]


@pytest.mark.process
def test_the_load_asks_chat_of_a_chat_model_and_may_go_on(tmp_path: Path) -> None:
    home, folder = open_home(tmp_path / "home"), tiny_llama(tmp_path / "chat")
    (folder / "chat_template.jinja").write_text("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"max_position_embeddings": 512', '"max_position_embeddings": 4096'))
    card = models.resolve(home, str(folder))
    options = demo.evaluate_spec(home, card, []).options
    assert options.until_decided and stopping_rule.blocks_of_tests(options.max_blocks) == (6,)
    assert not demo.evaluate_spec(home, card, [], repeats=1).options.until_decided
    assert (options.workload, options.endpoint, options.concurrency) == (
        workloads.CHAT,
        "chat",
        (1, 4),
    ) and options.may_repeat
    assert evaluations.read_options(**options.model_dump()) == options
    # The file that it was imported from is a candidate on llama.cpp, in place of one recipe.
    (folder / gguf.ORIGINAL).mkdir()
    tried = len(demo.valid_recipes(home, card))
    gguf_files.write(folder / gguf.ORIGINAL / "chat.gguf", folder)
    assert len(demo.valid_recipes(home, card)) == tried - 1
    served = [variant.serving.engine for variant in demo.evaluate_spec(home, card, []).variants]
    assert served == ["vllm", "llama.cpp"]


def test_in_one_line_it_is_said_which_model_it_is_and_why(tmp_path: Path) -> None:
    home = open_home(tmp_path / "home")
    choice = demo_model.describe_choice(demo_model.starter_card(home), "Nothing answers.")
    assert "starter model" in choice and choice.endswith("could not be fetched: Nothing answers.")
    real = SMOLLM2.model_copy(update={"id": demo_model.NAME})
    card = demo_model.starter_card(home).model_copy(update={**real.model_dump(), "origin": "imported"})
    assert (
        demo_model.describe_choice(card)
        == "It runs on SmolLM2-135M-Instruct, with the weights that its authors published."
    )
