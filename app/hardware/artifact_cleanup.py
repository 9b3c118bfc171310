"""Show the disk space of artifacts, and delete unused files in two steps: preview, then delete."""

from __future__ import annotations

from datetime import timedelta

import streamlit as st

from app import shell
from app.formatting import message, plain, size
from app.navigation import page_key
from app.session import disabled_unless_allowed
from backend.domain.errors import WhetstoneError
from backend.domain.figures import counted
from backend.service import Workspace
from backend.service.jobs import artifact_storage
from backend.service.jobs.artifact_storage import GarbageCollection

AGES: dict[str, timedelta | None] = {
    "no artifacts": None,
    "artifacts of 7 days": timedelta(days=7),
    "artifacts of 30 days": timedelta(days=30),
    "artifacts of 90 days": timedelta(days=90),
}
SHOWN = 5


def show(opened: Workspace) -> None:
    # 1. Used space.
    st.subheader("Artifacts")
    try:
        usage = artifact_storage.usage(opened)
    except WhetstoneError as error:
        st.error(message(error), icon=":material/error:")
        return
    quota = None if usage.quota is None else f"of {size(usage.quota)}"
    shell.show_figures([("Used", size(usage.bytes), quota)])
    st.caption(plain(f"New artifacts go to {usage.place}."))
    shell.show_damaged(opened, "artifact")
    # 2. Preview and delete.
    with st.container(horizontal=True, vertical_alignment="bottom"):
        age = st.selectbox("Delete unused files, and with them", list(AGES), key=page_key("collect_age"), width=280)
        key = page_key(f"collect {age}")
        if st.button(
            "Preview", key=page_key("collect_look"), icon=":material/search:", **disabled_unless_allowed(opened)
        ):
            st.session_state[key] = _collect(opened, AGES[age], dry_run=True)
    collected: GarbageCollection | None = st.session_state.get(key)
    if collected is not None:
        _offer(opened, collected, age, key)


def _offer(opened: Workspace, collected: GarbageCollection, age: str, key: str) -> None:
    """Show what would be deleted and the button; afterwards what was deleted."""
    # What is, or would be, deleted in words.
    more = " and more" if len(collected.artifacts) > SHOWN else ""
    named = f" ({', '.join(collected.artifacts[:SHOWN])}{more})" if collected.artifacts else ""
    summary = f"{counted(len(collected.artifacts), 'artifact')}{named} in {counted(collected.contents, 'piece')}"
    # Say what was deleted, that there is nothing, or ask.
    if not collected.dry_run:
        st.success(plain(f"Deleted: {summary}; {size(collected.bytes)} freed."), icon=":material/check_circle:")
    elif not collected.contents:
        st.caption("Nothing to delete: every file belongs to an artifact or is less than a day old.")
    else:
        st.markdown(
            plain(f"To delete: {summary}, {size(collected.bytes)}. No job, preset, endpoint or evaluation uses them.")
        )
        if st.button("Remove", key=page_key("collect_go"), icon=":material/delete:", **disabled_unless_allowed(opened)):
            st.session_state[key] = _collect(opened, AGES[age], dry_run=False)
            st.rerun()


def _collect(opened: Workspace, age: timedelta | None, *, dry_run: bool) -> GarbageCollection | None:
    try:
        return artifact_storage.collect_garbage(opened, unused_for=age, dry_run=dry_run)
    except WhetstoneError as error:
        st.error(message(error), icon=":material/error:")
        return None
