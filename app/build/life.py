"""How the job that Build submits runs: whether an evaluation comes after it, its priority, its limit of time, its share."""

from __future__ import annotations

from typing import NamedTuple

import streamlit as st

from app.labels import sentence
from app.words import message
from backend.domain.errors import WhetstoneError
from backend.domain.jobs import terms
from backend.domain.jobs.terms import Priority, Terms
from backend.service import Workspace
from backend.service.evaluations import following
from backend.service.jobs.jobs import Follower
from backend.service.plans.optimize import Prepared


class Life(NamedTuple):
    """`then`: an evaluation after it. `obstacle`: why it cannot be submitted so."""

    terms: Terms = Terms()
    then: bool = False
    obstacle: str | None = None

    @property
    def mark(self) -> str:
        return f"{self.terms.text} {self.then}"


def choose() -> Life:
    """One line: the second job, and behind a button what few ask for."""
    with st.container(horizontal=True, vertical_alignment="center", key="build_life"):
        then = st.checkbox(
            "Then evaluate it against the original", key="build_then", bind="query-params",
            help="A second job, which starts once this one has succeeded and is cancelled where it does not.",
        )  # fmt: skip
        with st.popover("Priority and limits", icon=":material/tune:", key="build_limits"):
            priority = st.segmented_control(
                "Priority", [str(each) for each in Priority], default=str(Priority.NORMAL), key="build_priority", required=True,
                bind="query-params",
                help="A head start of a working day, or the opposite: none is overtaken for ever.",
            )  # fmt: skip
            limit = st.text_input(
                "Ends after", key="build_run-limit", placeholder="no limit; 30m, 2h", max_chars=20, bind="query-params"
            )
            cores = st.number_input(
                "Cores", min_value=1, value=None, key="build_cores", placeholder="all", bind="query-params",
                help="Jobs that fit run beside each other; a measurement has the machine to itself.",
            )  # fmt: skip
    try:
        run_s = terms.seconds(limit, "run_timeout_s") if limit and limit.strip() else None
    except WhetstoneError as error:
        return Life(then=then, obstacle=sentence(error))
    asked = Terms(priority=Priority(priority or Priority.NORMAL), run_timeout_s=run_s, cores=int(cores) if cores else None)
    return Life(asked, then)


def follower(opened: Workspace, life: Life, prepared: Prepared) -> Follower | None:
    """The evaluation to submit with it. Raises as `following.prepare`."""
    return following.follower(following.prepare(opened, prepared.spec)) if life.then else None


def refused(life: Life) -> None:
    if life.obstacle:
        st.error(message(life.obstacle), icon=":material/error:")
