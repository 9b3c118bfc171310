"""Import a folder: its card, what works here, and the buttons that add or remove it."""

from __future__ import annotations

import streamlit as st

from app import navigation, shell
from app.formatting import message, plain
from app.models.model_rows import fact_rows, model_figures, quantized_sentence, technique_rows
from app.session import disabled_unless_allowed, owner_suffix
from app.summaries import model_source
from backend.domain.errors import WhetstoneError
from backend.domain.model.facts import ModelCard
from backend.domain.roles import Action
from backend.present.source_names import short_name
from backend.service import Workspace
from backend.service.jobs import quotas
from backend.service.models import models, technique_checks

REFUSED = "import_refused"


def read_card(opened: Workspace, folder: str) -> ModelCard | None:
    """Return the card of a folder, or None after showing why it is no model."""
    try:
        with st.spinner("Reading its files"):
            return models.resolve_with_notes(opened, folder)
    except WhetstoneError as error:
        st.error(message(error), icon=":material/error:")
        return None


def name_field(source: str) -> str | None:
    """Draw the name of the model, a field for each source. None: the name comes from the source."""
    if not source:
        return None
    written = st.text_input(
        "Name (optional)",
        key=_name_key(source),
        max_chars=100,
        placeholder="by its folder, file or repository",
        help="Its name in the catalog, in charts and on the command line.",
    )
    return written.strip() or None


def _name_key(source: str) -> str:
    return f"import_name-{source}"


def show_action(opened: Workspace, card: ModelCard | None, source: str) -> None:
    """Draw the import button, and after the import the next step."""
    # A model that is known already is optimized next.
    there = card is not None and (card.origin == "starter" or models.is_remembered(opened, card))
    if card is not None and there:
        if st.button("Optimize", type="primary", icon=":material/construction:", shortcut="Alt+O"):
            navigation.go("build", model=model_source(card))
    else:
        # Otherwise it can be imported, once its folder was read.
        state = {"disabled": card is None, "help": None if card else "Enter a folder with a model first."}
        st.button(
            "Import",
            type="primary",
            icon=":material/download_done:",
            shortcut="Alt+I",
            on_click=_remember,
            args=(opened, card.path if card else "", source),
            key="import_submit",
            **{**state, **disabled_unless_allowed(opened, Action.REMEMBER_MODEL)},
        )
    shell.show_session_error(REFUSED)


def _remember(opened: Workspace, path: str, source: str) -> None:
    name = str(st.session_state.get(_name_key(source)) or "").strip() or None
    with shell.errors_in_session(REFUSED):
        models.remember(opened, path, name=name)


def _forget(opened: Workspace, path: str) -> None:
    with shell.errors_in_session(REFUSED):
        models.forget(opened, path)


def show_card(opened: Workspace, card: ModelCard) -> None:
    """Show the card, the licence, and what each technique would do here."""
    # 1. Whether it is in the catalog.
    st.subheader(plain(short_name(card.id)))
    if card.origin == "starter":
        st.success("This model comes with Whetstone: it is in the catalog already.", icon=":material/check_circle:")
    elif models.is_remembered(opened, card):
        st.success("This model is in the catalog.", icon=":material/check_circle:")
    below = {quantized_sentence(card), card.quantized_before.sentence if card.quantized_before else ""}
    for note in card.notes:
        if note not in below:
            st.info(plain(note), icon=":material/info:")
    # 2. Figures, licence, quantization.
    shell.show_figures(model_figures(card))
    licence = models.find_licence(card)
    st.markdown(
        f"**Licence** {plain(licence)}"
        if licence
        else "**Licence** not stated in the folder: check where the model comes from."
    )
    if card.quantization:
        st.info(message(quantized_sentence(card)), icon=":material/info:")
    if card.quantized_before:
        st.warning(message(card.quantized_before.sentence), icon=":material/compress:")
    # 3. Techniques and the card.
    st.markdown("**Compatibility on this machine**")
    st.dataframe(
        technique_rows(technique_checks.check_all(opened, card)),
        hide_index=True,
        alt="Techniques and whether they work here",
    )
    with st.expander("The card, as read from config.json and the weights", icon=":material/description:"):
        st.dataframe(fact_rows(card), hide_index=True, alt="Facts of the model")


def show_imported(opened: Workspace) -> None:
    """List the imported models with links and a way to remove them."""
    # 1. The quota and damaged rows.
    st.subheader("Imported")
    if room := quotas.own_import_quota(opened):
        st.caption(f"You have imported {room[0] / 1e9:.2f} of {room[1]:g} GB per person.")
    shell.show_damaged(opened, "model")
    # 2. A card per model.
    remembered = models.list_remembered(opened)
    if not remembered:
        st.caption("Imported models appear here and in the catalog.")
    for known in remembered:
        with st.container(
            border=True, horizontal=True, vertical_alignment="center", key=f"import_imported-{known.card.path}"
        ):
            absence = "its weights are not part of this demonstration" if opened.read_only else "the folder is gone"
            missing = "" if known.present else f" · :material/folder_off: {absence}"
            owner = owner_suffix(opened, known.owner)
            title = f"**{plain(short_name(known.card.id))}**{missing}{owner}"
            folder = "" if opened.read_only else f"  \n:small[{plain(known.card.path)}]"
            st.markdown(f"{title}{folder}", width="stretch")
            if known.present or opened.read_only:
                navigation.link("model", "Open", ":material/open_in_full:", id=known.card.path)
            options = disabled_unless_allowed(opened, Action.FORGET_MODEL, known.owner)
            with st.popover(
                "Remove", icon=":material/playlist_remove:", key=f"import_ask-forget-{known.card.path}", **options
            ):
                st.markdown("Remove it from the catalog? The folder and everything made from it remain.")
                st.button(
                    "Yes, remove it",
                    key=f"import_forget-{known.card.path}",
                    on_click=_forget,
                    args=(opened, known.card.path),
                    **options,
                )
