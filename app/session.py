"""The workspace of this server process, opened once, and permissions of whoever uses the page."""

from __future__ import annotations

import gc
import sys
from typing import Any

import streamlit as st

from app.formatting import message, plain
from app.load_bar import address
from backend import service
from backend.domain.errors import NotAllowed, WhetstoneError
from backend.domain.jobs import demonstration
from backend.domain.roles import Action, Actor
from backend.service import Workspace
from backend.service.jobs import supervisors
from backend.service.machines import prices
from backend.service.studio import sign_in
from backend.service.studio.sign_in import SignIn

PATIENCE_S = 5.0
"""Seconds that a click waits for a locked database. Writes take milliseconds; after this an error is better."""


@st.cache_resource(show_spinner=False)  # type: ignore[untyped-decorator]
def _open() -> tuple[Workspace, SignIn | None]:
    opened = service.open_workspace(patience_s=PATIENCE_S)
    return opened, sign_in.read_configuration(opened.settings)


def workspace() -> Workspace:
    """Return the workspace for whoever sees the page, with their region and discount; an error is shown and ends it."""
    try:
        opened: Workspace
        opened, configured = _open()
        opened = opened.acting_as(_acting_person(opened, configured))
        load = address.current()
        if load.region is not None and load.region in prices.list_regions(opened):
            opened = opened.in_region(load.region)
        return opened if load.discount is None else opened.at_discount(load.discount)
    except WhetstoneError as error:
        st.error(message(error), icon=":material/error:")
        st.stop()
        raise


def _acting_person(opened: Workspace, configured: SignIn | None) -> Actor:
    """Return who signed in, or the owner of the studio. Raises NotAllowed.

    The gate let nobody else in; this is what the service relies on.
    """
    if configured is None:
        return opened.actor.model_copy(update={"origin": "page"})
    actor = configured.actor(st.user.to_dict() if st.user.is_logged_in else {})
    if actor.role is None:
        raise NotAllowed(
            f"{actor.name or 'Whoever you are, you'} may not use this studio: sign in, or ask an admin for a role."
        )
    return actor


def show_account(opened: Workspace) -> None:
    """Draw the name, role and sign-out button in the sidebar, if people sign in."""
    if _open()[1] is None:
        return
    with st.sidebar.popover(opened.actor.name, icon=":material/account_circle:", width="stretch", key="shell_account"):
        st.markdown(f"Signed in as **{plain(opened.actor.name)}**, with the role **{opened.actor.role}**.")
        st.button("Sign out", icon=":material/logout:", key="shell_sign-out", on_click=st.logout)


def disabled_unless_allowed(
    opened: Workspace, action: Action = Action.SUBMIT, owner: str | None = None
) -> dict[str, Any]:
    """Return options of a button that starts or changes something: disabled, with the reason, if it is not allowed.

    `owner`: of what it changes.
    """
    why = opened.refusal(action, owner)
    return {"disabled": True, "help": message(why)} if why else {}


def choose_owner(opened: Workspace, others: bool, key: str) -> str | None:
    """Draw the switch "Mine only" if there is something of others. Return the owner to filter by."""
    if others and st.toggle("Mine only", key=key, bind="query-params"):
        return opened.actor.name
    return None


def owner_suffix(opened: Workspace, owner: str) -> str:
    """Return ` · by ann@example.org` if that is somebody else."""
    return f" · by {plain(owner)}" if owner not in {"", opened.actor.name} else ""


def show_banner(opened: Workspace) -> None:
    """Show what a demonstration is, or that no supervisor runs queued jobs.

    In a container that is always drawn: Streamlit tells the containers of a page apart by their number, so a banner
    that came or went would build all below it anew, and a field there would forget what was typed and not yet left.
    """
    place = st.container()
    if opened.demonstration is not None:
        place.caption(f":material/co_present: {plain(opened.demonstration.label)}", help=demonstration.READ_ONLY)
    elif not supervisors.is_alive(opened):
        place.warning(
            "No supervisor is running, so queued jobs wait. `whetstone up` starts one with the studio; "
            "`make run` does both from a checkout.",
            icon=":material/pause_circle:",
        )


@st.cache_resource(show_spinner=False)  # type: ignore[untyped-decorator]
def _frozen_modules() -> dict[str, int]:
    return {"modules": 0}


def freeze_imports() -> None:
    """Exclude imported modules from garbage collection, again whenever a page has imported more.

    Streamlit collects after every run of a script or a live part; walking pandas, SQLAlchemy and Streamlit itself each
    time takes longer than most pages do (benchmarks/pages.py).
    """
    frozen = _frozen_modules()
    if len(sys.modules) > frozen["modules"]:
        frozen["modules"] = len(sys.modules)
        gc.freeze()
