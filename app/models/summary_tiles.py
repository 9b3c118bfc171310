"""The four tiles of a model's page: size, memory, the lowest price and the best preset at the planned load."""

from __future__ import annotations

from app import shell
from app.formatting import size
from app.load_bar import address
from app.models.model_rows import model_figures
from backend.domain.model.facts import NO_TOKENS, ModelFacts
from backend.domain.needs import serving_memory
from backend.domain.planner.preset_titles import tradeoff_sentence
from backend.domain.recipe.recipe import ORIGINAL
from backend.service import Workspace
from backend.service.plans.token_prices import ModelPrice
from backend.service.presets import preset_comparison, presets
from backend.service.presets.presets import PresetFilter

Figure = tuple[str, str, str | None]
"""Label, value and what it rests on."""


def show(opened: Workspace, model: ModelFacts, source: str, price: ModelPrice | None) -> None:
    """Draw the tiles. `price`: the lowest one, or that of the chosen instance; None where it is not known."""
    figures = [model_figures(model)[0], memory_figure(model), price_figure(price)]
    shell.show_figures([*figures, preset_figure(opened, source)])


def memory_figure(model: ModelFacts) -> Figure:
    """Return the memory of the weights, with what each token of the cache adds."""
    weights = size(serving_memory.weights(model, ORIGINAL).total)
    if not model.generates:
        return "Memory", weights, f"weights; {NO_TOKENS}"
    per_token, whole = size(model.kv_bytes_per_token), size(model.kv_bytes_of(model.max_positions))
    return "Memory", weights, f"weights; KV cache {per_token} per token, {whole} at {model.max_positions:,} tokens"


def price_figure(price: ModelPrice | None) -> Figure:
    """Return the price per million output tokens."""
    if price is None:
        return "Price per million output tokens", "unknown", "see below why"
    where = "chosen below" if price.chosen else "the lowest price per token"
    return "Price per million output tokens", f"{price.span} USD", f"estimated on {price.target}, {where}"


def preset_figure(opened: Workspace, source: str) -> Figure:
    """Return the preset that wins at the planned load within its limits."""
    known = presets.listing(opened, PresetFilter(model=source))
    if not known:
        return "Best preset", "none yet", "presets of other models can be applied to it"
    comparison = preset_comparison.compare(opened, [each.preset for each in known], address.current().expected)
    choice = comparison.choose(address.current().goal)
    if choice.winner is None:
        return "Best preset", "not known", choice.why
    estimate = comparison.by_key[choice.winner]
    return "Best preset", comparison.name(choice.winner), tradeoff_sentence(estimate, comparison.original)
