"""Add a variant that differs from a chosen one by one serving setting: the same weights, nothing copied."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app.builder.option import Option
from app.builder.serving_options import SERVING_OPTIONS
from app.evaluate import engine_fields
from app.formatting import message
from app.serving import engine_select
from backend.domain.errors import WhetstoneError
from backend.domain.evaluation.outcome import Outcome
from backend.domain.recipe.serving.source_settings import SETTINGS, TRUTH_WORDS, parse_source, write_source
from backend.domain.recipe.serving_engines import ENGINES
from backend.service import Workspace
from backend.service.models import measured_settings, variants
from backend.service.models.measured_settings import SettingComparison

OPTIONS = {option.name: option for option in SERVING_OPTIONS if option.name in SETTINGS}
MOST_SENTENCES = 3
VERDICTS: dict[Outcome, str] = {
    "better": "faster",
    "worse": "slower",
    "same": "the same",
    "undecided": "no verdict",
    "not_comparable": "not comparable",
}
SOURCE_FIELD, SETTING_FIELD, VALUE_FIELD = "evaluate_set_source", "evaluate_set_name", "evaluate_set_value"


def draw(opened: Workspace, labels: dict[str, str], sources: Sequence[str]) -> None:
    """Draw the fields, folded. The button puts the variant with the setting behind the others."""
    served = [source for source in sources if engine_select.find_offer(opened, source) is not None]
    if not served:
        return
    with st.expander("Compare a serving setting", icon=":material/tune:"):
        # 1. Which variant, which setting, which value.
        first, second, third = st.columns(3)
        source = first.selectbox(
            "Variant", served, key=SOURCE_FIELD, format_func=lambda source: labels.get(source, source)
        )
        setting = second.selectbox(
            "Setting", list(OPTIONS), key=SETTING_FIELD, format_func=lambda name: OPTIONS[name].label
        )
        option, field = OPTIONS[setting], f"{VALUE_FIELD}_{setting}"
        choices = list_choices(option)
        if choices:
            value = third.selectbox("Value", choices, key=field, help=option.help)
        else:
            value = third.text_input("Value", key=field, help=option.help, max_chars=40)
        # 2. What was measured of it, and whether it can be served so, before it is added.
        for sentence in measured_sentences(opened, source, setting):
            st.caption(message(sentence))
        changed = _with_setting(source, setting, str(value).strip())
        refusal = _find_refusal(opened, changed) if value else None
        if refusal:
            st.caption(message(refusal))
        st.button(
            "Add as a variant",
            icon=":material/add:",
            key="evaluate_set_add",
            disabled=not value or refusal is not None or changed in sources,
            on_click=engine_fields.write,
            args=([*sources, changed],),
        )


def measured_sentences(opened: Workspace, source: str, setting: str) -> list[str]:
    """Return what this machine's evaluations showed of a setting with the source's model, the newest first."""
    try:
        model = variants.resolve(opened, source).model_path
    except WhetstoneError:
        return []
    comparisons = measured_settings.find_comparisons(opened, str(model), setting) if model else []
    return [_say_comparison(comparison) for comparison in comparisons[:MOST_SENTENCES]]


def _say_comparison(comparison: SettingComparison) -> str:
    """Return `Measured here on 2026-11-26: q8_0 rather than auto on llama.cpp, 1.04x output tokens/s at ...`."""
    value, before = _say_value(comparison.value), _say_value(comparison.before)
    interval = " ({:.2f} to {:.2f})".format(*comparison.ci95) if comparison.ci95 else ""
    engine = ENGINES[comparison.engine].title
    return (
        f"Measured here on {comparison.day}: {value} rather than {before} on {engine}, {comparison.ratio:.2f}x output "
        f"tokens/s at {comparison.load}{interval}, {VERDICTS[comparison.outcome]}."
    )


def _say_value(value: object) -> str:
    if value is None:
        return "the default"
    return TRUTH_WORDS[value] if isinstance(value, bool) else str(value)


def list_choices(option: Option) -> list[str]:
    """Return the values of an option as they are written behind a source; none if it is typed."""
    values = (True, False) if option.kind == "flag" else option.choices
    return [TRUTH_WORDS.get(value, str(value)) for value in values if value is not None]


def _with_setting(source: str, setting: str, value: str) -> str:
    parts = parse_source(source)
    return write_source(parts._replace(settings={**parts.settings, setting: value}))


def _find_refusal(opened: Workspace, source: str) -> str | None:
    try:
        variants.check_served(opened, [variants.resolve(opened, source)])
    except WhetstoneError as error:
        return str(error)
    return None
