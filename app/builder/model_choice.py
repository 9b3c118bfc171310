"""Choose the model of the recipe: one whose weights are on this machine, or one known by published facts only."""

from __future__ import annotations

import streamlit as st

from app import model_field, shell, url_parameters
from app.formatting import count, size
from backend.domain.figures import code, counted
from backend.domain.model.facts import ModelFacts, PublishedModel
from backend.domain.planner import estimate
from backend.present.source_names import short_name
from backend.service import Workspace
from backend.service.models import catalog_sync, model_names, models

MODEL = "build_model"


def choose(opened: Workspace) -> ModelFacts | None:
    """Draw the field. Return the facts of the model, or None after showing why they cannot be read."""
    # 1. Models that are here first, then published ones.
    published = catalog_sync.names(opened)
    labels = {
        source: f"{label} (on this machine)" if label in published else label
        for source, label in model_names.list_present(opened).items()
    }
    current = url_parameters.query().get("model") or st.session_state.get(MODEL)
    current = current or model_names.choose_first(opened, list(labels))
    choices = list(dict.fromkeys([*labels, *published]))
    choices = choices if current in choices else [current, *choices]
    # 2. The field; parts of a name and other names can be typed.
    chosen = model_field.draw(
        opened,
        "Model",
        choices,
        labels,
        {name: name for name in published},
        index=choices.index(current),
        key=f"build-model-{current}",
        format_func=lambda name: labels.get(name) or short_name(name),
        help=(
            "A model of the catalog, the path of a folder with config.json and safetensors, or a published id "
            f"for planning. Chosen: {code(current)}"
        ),
    )
    chosen = chosen or current
    if url_parameters.query().get("model") != chosen:
        url_parameters.query()["model"] = chosen
    # 3. Read the facts.
    model_facts: ModelFacts | None = None
    with shell.errors_inline():
        model_facts = models.resolve_facts(opened, chosen)
        st.session_state[MODEL] = chosen
    return model_facts


def summary(model: ModelFacts) -> str:
    """Return a model in one line."""
    weights = size(estimate.original_bytes(model))
    text = f"{count(model.parameters)} parameters, {weights}, {counted(model.layers, 'layer')}, {model.dtype}"
    return f"{text}. Not downloaded: published facts only, for planning" if isinstance(model, PublishedModel) else text
