"""Choose how the job that Build submits runs: an evaluation afterwards, priority, time limit and cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import streamlit as st

from app.field_labels import error_sentence
from app.formatting import message
from backend.domain.errors import WhetstoneError
from backend.domain.jobs import terms
from backend.domain.jobs.jobs import OptimizeSpec
from backend.domain.jobs.terms import Priority, Terms
from backend.service import Workspace
from backend.service.evaluations import follow_up
from backend.service.jobs.jobs import JobView
from backend.service.plans import optimize, sagemaker_jobs
from backend.service.plans.cases import Case
from backend.service.plans.optimize import PreparedOptimize
from backend.service.plans.sagemaker_jobs import ManagedPreview


class JobTerms(NamedTuple):
    """`then`: an evaluation follows. `obstacle`: why these terms cannot be submitted."""

    terms: Terms = Terms()
    then: bool = False
    obstacle: str | None = None

    @property
    def mark(self) -> str:
        return f"{self.terms.text} {self.then}"


class Submission(NamedTuple):
    """A job that can be submitted.

    `mark` is the same for the same job. `submit` takes the submission key. `spec` is set if the job runs here.
    """

    mark: str
    submit: Callable[[str, JobTerms], JobView]
    spec: OptimizeSpec | None = None


def choose(target: str, unserved: str | None) -> JobTerms:
    """Draw the terms in one line, the rare ones behind a button. Jobs of AWS use nothing of this machine.

    `unserved`: why this machine does not serve the result, if that is known.
    """
    # 1. The widgets.
    aws = sagemaker_jobs.is_sagemaker(target)
    then_help = "A second job, which starts when this one has succeeded and is cancelled if it fails."
    if aws:
        then_help = "The result of SageMaker is in S3: it can be measured once it is fetched."
    elif unserved:
        then_help = f"There is nothing to measure: {message(unserved)}. Its quality is scored by the job itself."
    with st.container(horizontal=True, vertical_alignment="center", key="build_life"):
        then = st.checkbox(
            "Evaluate when done",
            key="build_then",
            bind="query-params",
            disabled=aws or unserved is not None,
            help=then_help,
        )
        with st.popover("Priority and limits", icon=":material/tune:", key="build_limits"):
            priority = st.segmented_control(
                "Priority",
                [str(level) for level in Priority],
                default=str(Priority.NORMAL),
                key="build_priority",
                required=True,
                bind="query-params",
                help="High is a head start of one working day, low the opposite. Low priority still runs.",
            )
            limit = st.text_input(
                "Ends after", key="build_run-limit", placeholder="no limit; 30m, 2h", max_chars=20, bind="query-params"
            )
            cores = st.number_input(
                "Cores",
                min_value=1,
                max_value=4096,
                value=None,
                key="build_cores",
                placeholder="all",
                bind="query-params",
                disabled=aws,
                help="Jobs that fit run at the same time; a measurement runs alone on the machine.",
            )
    then = then and not aws and unserved is None
    # 2. Parse the time limit.
    try:
        run_s = terms.parse_seconds(limit, "run_timeout_s") if limit and limit.strip() else None
    except WhetstoneError as error:
        st.error(message(error), icon=":material/error:")
        return JobTerms(then=then, obstacle=error_sentence(error))
    chosen_terms = Terms(
        priority=Priority(priority or Priority.NORMAL),
        run_timeout_s=run_s,
        cores=int(cores) if cores and not aws else None,
    )
    return JobTerms(chosen_terms, then)


def local_submission(opened: Workspace, prepared: PreparedOptimize) -> Submission:
    """Return the submission of a job of this machine."""
    spec = prepared.spec
    where = spec.deployment.target if spec.deployment else spec.target

    def submit(key: str, life: JobTerms) -> JobView:
        then = follow_up.make_follower(follow_up.prepare(opened, spec)) if life.then else None
        return optimize.submit(opened, prepared, submission=key, terms=life.terms, then=then)

    return Submission(
        f"{spec.model.path} {spec.model.revision} {spec.recipe.hash} {spec.recipe.name} {where}", submit, spec
    )


def sagemaker_submission(opened: Workspace, case: Case, settings: Sequence[str], preview: ManagedPreview) -> Submission:
    """Return the submission of a SageMaker job."""

    def submit(key: str, life: JobTerms) -> JobView:
        return sagemaker_jobs.submit(opened, case, settings, submission=key, terms=life.terms)

    return Submission(
        f"{case.model.id} {case.recipe.hash} {case.recipe.name} {preview.target} {sorted(settings)}", submit
    )
