"""Import a model from a hub or S3: its card before the download, its licence, and the job that fetches it."""

from __future__ import annotations

import streamlit as st

from app import idempotency, navigation, shell
from app.field_labels import LABELS
from app.formatting import message, plain, shorten, size
from app.models.model_rows import model_figures, quantized_sentence
from app.session import disabled_unless_allowed
from backend.domain.errors import WhetstoneError
from backend.domain.figures import counted
from backend.domain.model.inspection import Inspection
from backend.domain.roles import Action
from backend.present.source_names import short_name
from backend.service import Workspace
from backend.service.models import imports

PURPOSE, REQUESTED = "import", "import_asked"
CACHE_S = 600
"""Seconds for which a card that was read over the network is shown again."""


READING = "Reading the card: no weights are fetched"


@st.cache_data(ttl=CACHE_S, max_entries=64, show_spinner=READING)  # type: ignore[untyped-decorator]
def _inspect(_opened: Workspace, source: str) -> Inspection:
    return imports.inspect(_opened, source)


def is_remote(opened: Workspace, source: str) -> bool | None:
    """Tell whether an import needs a job; None, after showing why, if this person may not name such files."""
    try:
        return bool(source) and imports.is_remote(opened, source)
    except WhetstoneError as error:
        st.error(message(error), icon=":material/error:")
        return None


def request_card(source: str) -> None:
    """Store that the person typed or clicked this model. An address written by somebody else is no request."""
    st.session_state[REQUESTED] = source.strip()


def inspect(opened: Workspace, source: str) -> Inspection | None:
    """Return what an import would fetch, once it was requested; None after showing why there is no such model."""
    if why := opened.refusal(Action.REMEMBER_MODEL):
        st.info(message(why), icon=":material/lock:")
        return None
    if imports.asks_network(source) and st.session_state.get(REQUESTED) != source:
        st.markdown(f"The card of **{plain(shorten(source, 120))}** is not read yet: it is fetched over the network.")
        st.button("Read the card", icon=":material/search:", key="import_ask", on_click=request_card, args=(source,))
        return None
    try:
        inspection: Inspection = _inspect(opened, source)
    except WhetstoneError as error:
        st.error(message(error), icon=":material/error:")
        return None
    return inspection


def show_card(inspection: Inspection) -> bool:
    """Show the card, the licence and the download. Return whether its conditions are accepted, if they must be."""
    # 1. The card.
    st.subheader(plain(short_name(inspection.title)))
    if inspection.card is None:
        st.info("The card of a model in a package is read after the download.", icon=":material/info:")
    else:
        shell.show_figures(model_figures(inspection.card))
    if inspection.card is not None and inspection.card.quantization:
        st.info(message(quantized_sentence(inspection.card)), icon=":material/info:")
    if inspection.card is not None and inspection.card.quantized_before is not None:
        st.warning(message(inspection.card.quantized_before.sentence), icon=":material/compress:")
    # 2. The download, or the file here.
    st.markdown(_origin_sentence(inspection))
    # 3. The licence and its acceptance.
    licence = plain(inspection.licence) if inspection.licence else "not stated"
    where = f" Its conditions: {plain(inspection.licence_url)}" if inspection.licence_url else ""
    st.markdown(f"**Licence** {licence}{', and gated by its owner' if inspection.gated else ''}.{where}")
    if not inspection.must_accept:
        return True
    return bool(
        st.checkbox(
            LABELS["accept_licence"],
            key=f"import_accept-{inspection.source}-{inspection.revision}",
            help="Stored with the job.",
        )
    )


def _origin_sentence(inspection: Inspection) -> str:
    """Return how much is downloaded; of a file of this machine, that nothing is."""
    digest = f"`{inspection.revision[:12]}`"
    amount = f"{size(inspection.bytes)} in {counted(len(inspection.files), 'file')}"
    if not imports.asks_network(inspection.source):
        return f"**File** {amount} on this machine, SHA-256 {digest}. Nothing is downloaded: it is converted here."
    if not inspection.bytes:
        amount = "of a size that its index does not state"
    return f"**Download** {amount}, at the revision {digest}."


def show_import_button(opened: Workspace, inspection: Inspection | None, accepted: bool, name: str | None) -> None:
    """Draw the button that submits one job per model, however often it is clicked."""
    # Say why it cannot be imported yet.
    reason = None if inspection else "Enter a model first."
    if inspection and not accepted:
        reason = "Accept its licence first."
    options = {"help": reason, "disabled": reason is not None, **disabled_unless_allowed(opened)}
    clicked = st.button(
        "Import", type="primary", icon=":material/download:", shortcut="Alt+I", key="import_submit", **options
    )
    # Submit one job, also for a double click, and open it.
    if clicked and inspection:
        with shell.errors_on_page():
            prepared = imports.prepare(
                opened, inspection.source, revision=inspection.revision, accept_licence=accepted, name=name
            )
            mark = f"{inspection.source} {inspection.revision} {name or ''}".rstrip()
            job = imports.submit(
                opened, prepared, submission=idempotency.submission_key(PURPOSE, mark, for_s=idempotency.DOUBLE_CLICK_S)
            )
            idempotency.remember_job(PURPOSE, job.id)
            navigation.go("job", id=job.id)
