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
from backend.domain.recipe.serving.source_settings import SETTINGS, TRUTH_WORDS, parse_source, write_source
from backend.service import Workspace
from backend.service.models import variants

OPTIONS = {option.name: option for option in SERVING_OPTIONS if option.name in SETTINGS}
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
        # 2. Whether it can be served so, before it is added.
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
