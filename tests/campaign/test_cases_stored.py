"""Checkpoints that are easily misread: their scores are those that transformers alone computes, or one sentence says
why not. One goes through the command and a worker, the others through the worker's functions in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from backend.catalog.text import held_out_text
from backend.evaluate.quality.scoring import window_tokens
from backend.service.plans.recipe_files import read_file
from tests.campaign.served_logits import WINDOW, command, quantized_logits
from tests.cases import stored
from tests.cases.models import llama
from tests.families import dense, divergence, logits
from tests.homes import open_home
from tests.integration.cli.calling import whetstone
from tests.worker_here import run_optimize

pytestmark = pytest.mark.campaign

RECIPES = {
    "prune": "{prune: {method: magnitude}}",
    "awq": "{quantize: {method: awq, samples: 4, length: 64}}",
    "w8a8": "{quantize: {method: w8a8}}",
    "fp8": "{quantize: {method: fp8}}",
}
ROUNDED = {"w8a8": "int8", "fp8": "fp8"}
"""What the inputs of quantized linears are rounded to."""


class Case(NamedTuple):
    """`model` makes what people bring, `plain` what it stands for (None: it is plain); `recipes` are run."""

    model: Callable[[Path], Path]
    recipes: tuple[str, ...]
    plain: Callable[[Path], Path] | None = None


RIGHT = {
    "ModelOpt FP8": Case(
        stored.modelopt_model, ("prune", "fp8"), lambda folder: stored.dense(llama(folder), stored.modelopt_fp8)
    ),
    "older AutoGPTQ": Case(stored.gptq_model, ("w8a8",), lambda folder: stored.dense(llama(folder), stored.gptq)),
    "groups of zeros": Case(stored.zero_groups, ("awq",)),
    "dead experts": Case(stored.dead_experts, ("awq",)),
    "biases": Case(stored.biases, ("awq",)),
    "biases in float16": Case(lambda folder: stored.biases(folder, "float16"), ("w8a8",)),
    "large numbers": Case(stored.large_numbers, ("fp8",)),
}
BY_COMMAND = ("ModelOpt FP8", "fp8")
REFUSED = {
    "a mixture whose first layer is dense": (stored.first_layer_dense, "mlp_only_layers"),
    "no output head": (stored.head_missing, "The output head (lm_head.weight) is missing"),
    "a tied output head that is another": (stored.head_tied_but_other, "lm_head.weight is another matrix"),
    "a weight that is no number": (
        stored.not_a_number,
        "model.layers.1.mlp.down_proj.weight holds values that are not finite",
    ),
}


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recipes as files."""
    folder = tmp_path_factory.mktemp("recipes")
    for name, step in RECIPES.items():
        (folder / f"{name}.yaml").write_text(f"name: {name}\nsteps:\n  - {step}\n")
    return folder


def make_by_command(home: Path, model: Path, recipe: Path) -> Path:
    """Optimize by the command, which starts a supervisor and a worker, and return the artifact's folder."""
    return home / "artifacts" / str(command(home, "optimize", model, "--recipe", recipe, "--wait")["artifact"])


def make_here(home: Path, model: Path, recipe: Path) -> Path:
    """Run the same job in this process, which imports torch once, and return what would become the artifact."""
    return run_optimize(open_home(home), str(model), read_file(recipe), home / "job")


def perplexity(scored: Any, tokens: Any) -> float:
    """Of logits [windows, length, vocabulary] on the tokens that follow."""
    chosen = scored[:, :-1].double().log_softmax(-1).gather(-1, tokens[:, 1:, None])
    return float((-chosen.mean()).exp())


@pytest.mark.parametrize(
    ("name", "recipe"), [(name, recipe) for name, case in RIGHT.items() for recipe in case.recipes]
)
def test_scores_are_those_that_transformers_alone_computes(
    name: str, recipe: str, recipes: Path, tmp_path: Path
) -> None:
    case, home = RIGHT[name], tmp_path / "home"
    model = case.model(tmp_path / "model")
    plain = case.plain(tmp_path / "plain") if case.plain else model
    for each in RECIPES:
        assert whetstone(home, "recipe", "check", recipes / f"{each}.yaml", "--model", model).returncode == 0, each
    # 1. The artifact.
    assert whetstone(home, "models", "import", model).returncode == 0
    make = make_by_command if (name, recipe) == BY_COMMAND else make_here
    saved = make(home, model, recipes / f"{recipe}.yaml")
    manifest = json.loads((saved / "manifest.json").read_text())
    assert (manifest["parent"].get("stored") is None) == (case.plain is None)
    # 2. The original, and the saved file, scored by transformers alone.
    quality = manifest["quality"]
    tokens = window_tokens(model, held_out_text.read(None, model).documents, WINDOW, quality["windows"])
    original = logits(plain, tokens)
    if recipe == "prune":
        variant = logits(saved / "model", tokens)
    elif recipe in ROUNDED:
        variant = quantized_logits(saved / "model", tmp_path / "dense", "llama", ROUNDED[recipe], tokens)
    else:
        variant = logits(dense(saved / "model", tmp_path / "dense"), tokens)
    # 3. The manifest's own figures.
    assert quality["perplexity_before"] == pytest.approx(perplexity(original, tokens), rel=0.002)
    assert quality["perplexity_after"] == pytest.approx(perplexity(variant, tokens), rel=0.01)
    assert quality["kl_mean"] == pytest.approx(divergence(original[:, :-1], variant[:, :-1]), rel=0.05, abs=1e-5)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_right_is_refused_in_one_sentence(name: str, recipes: Path, tmp_path: Path) -> None:
    make, words = REFUSED[name]
    model = make(tmp_path / "model")
    done = whetstone(tmp_path / "home", "optimize", model, "--recipe", recipes / "prune.yaml", "--wait")
    assert done.returncode in {1, 2} and words in done.stderr and "Traceback" not in done.stderr + done.stdout, done
    assert not list((tmp_path / "home").glob("artifacts/a-*")), "nothing was made"
