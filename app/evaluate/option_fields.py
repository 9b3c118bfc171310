"""Draw widgets from the fields of the evaluation options.

Kind, limits and default come from the model, help from the field's docstring, the label from `LABELS`. A new field that
is drawn nowhere else appears here by itself.
"""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

import streamlit as st
from pydantic.fields import FieldInfo
from streamlit.delta_generator import DeltaGenerator

from app.evaluate.load_fields import RAMP, RATE, SEARCH, STREAMS, TRACE
from app.field_labels import LABELS, label
from backend.domain.evaluation.document import EvaluateOptions
from backend.service.evaluations import evaluations

PLACED = {
    "concurrency",
    "rate",
    "process",
    "ramp",
    "trace",
    "sweep",
    "sweep_to",
    "workload",
    "columns",
    "seed",
    "requests",
    "repeats",
    "time_unit",
    "until_decided",
    "max_blocks",
    "max_tokens",
    "price_per_hour",
    "discount",
    "quality",
    "tasks",
    "task_limit",
    "bearer_env",
}
"""Fields that are drawn elsewhere on the page."""
ONLY = {
    "seconds": {STREAMS, RATE, SEARCH},
    "connections": {RATE, RAMP, SEARCH, TRACE},
    "warmup_seconds": {RATE},
    "warmup_requests": {STREAMS, SEARCH},
}
"""Fields that apply only to some kinds of load."""
WORDS: dict[str, dict[str, Any]] = {"ignore_eos": {"as a rule": None, "as asked": True, "the model ends them": False}}
"""Labels of values, where a checkbox or the values would not explain themselves."""
TYPED = {"quality_text": evaluations.TEXTS}
"""Choices that also accept other text."""
EMPTY = {"seconds": "no limit", "quality_text": "what suits the model"}
"""Placeholders of empty fields."""
LEAST = 0.01
"""The least value of a number that must be above 0."""


def draw_rest(kind: str) -> dict[str, Any]:
    """Draw the fields that are drawn nowhere else and apply to this kind of load. Return their values by field."""
    names = [name for name in EvaluateOptions.model_fields if name not in PLACED and kind in ONLY.get(name, {kind})]
    columns = st.columns(3)
    return {name: draw_field(columns[number % 3], name) for number, name in enumerate(names)}


def draw_field(place: DeltaGenerator, name: str) -> Any:
    """Draw the widget of a field, bound to the address. Return its value."""
    # The type of the option decides its widget: named values, typed names, choices, a switch or a number.
    field = EvaluateOptions.model_fields[name]
    url: dict[str, Any] = {"key": f"evaluate_{name}", "help": help_text(field), "bind": "query-params"}
    if name in WORDS:
        return WORDS[name][place.selectbox(LABELS[name], list(WORDS[name]), **url) or next(iter(WORDS[name]))]
    if name in TYPED:
        empty = {"index": None, "placeholder": EMPTY.get(name, "none"), "accept_new_options": True}
        return place.selectbox(LABELS[name], TYPED[name], **empty, **url)
    if get_origin(field.annotation) is Literal:
        choices = get_args(field.annotation)
        return place.selectbox(LABELS[name], choices, choices.index(field.default), **url)
    if field.annotation is bool:
        return place.checkbox(LABELS[name], field.default, **url)
    return place.number_input(
        LABELS[name], value=field.default, placeholder=EMPTY.get(name, "none"), **number_limits(name), **url
    )


def help_text(field: FieldInfo) -> str:
    """Return the field's docstring, with other fields named by their labels."""
    named = {name: f'"{label(name)}"' for name in EvaluateOptions.model_fields}
    return " ".join((field.description or "").format_map(named).split())


def number_limits(name: str) -> dict[str, Any]:
    """Return least, most and step of a field. An address cannot go beyond them."""
    # Read the bounds that the option declares.
    field = EvaluateOptions.model_fields[name]
    number_type = int if int in (field.annotation, *get_args(field.annotation)) else float
    bounds = {
        bound: getattr(constraint, bound)
        for constraint in field.metadata
        for bound in ("gt", "ge", "le")
        if hasattr(constraint, bound)
    }
    # The least value; one that is excluded is replaced by a small number above it.
    least = None
    if "ge" in bounds:
        least = number_type(bounds["ge"])
    elif "gt" in bounds:
        least = max(number_type(bounds["gt"]), number_type(LEAST))
    # Steps are a tenth for small fractions, else one.
    fine = number_type is float and field.default is not None and field.default < 10
    return {
        "min_value": least,
        "max_value": number_type(bounds["le"]) if "le" in bounds else None,
        "step": 0.1 if fine else number_type(1),
    }
