"""A SageMaker job on its card and page: where it runs, what it costs, and what to do with the result in S3."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app import navigation, shell
from app.formatting import ago, plain, seconds
from backend.domain.figures import code
from backend.domain.machine.targets import hardware_name
from backend.domain.managed import optimization_job_status
from backend.service import Workspace
from backend.service.jobs import jobs, progress
from backend.service.jobs.jobs import JobView

WORDS = {
    "STARTING": "starting",
    "INPROGRESS": "running",
    "STOPPING": "stopping",
    "COMPLETED": "completed",
    "FAILED": "failed",
    "STOPPED": "stopped",
}
"""Status at AWS -> our word."""


def status_line(opened: Workspace, job: JobView) -> str:
    """Return one line for a card: the region and the cost so far."""
    spent = progress.find_cost(opened, job)
    cost = f"about {spent.spent:.2f} USD so far" if spent else None
    return ", ".join(filter(None, ["At SageMaker", optimization_job_status.arn_region(job.place or ""), cost])) + "."


def panel(opened: Workspace, job_id: str) -> str:
    """Show where the job runs at AWS and its status there. Return the state of the job."""
    # 1. Status at AWS.
    job, specification = jobs.show(opened, job_id), jobs.specification(opened, job_id)
    aws = progress.aws_status(opened, job)
    instance = hardware_name(specification["target"])
    arn = job.result.get("arn") or (job.place if optimization_job_status.arn_region(job.place or "") else None)
    where = optimization_job_status.arn_region(arn or "") or specification["region"] or "the region of the environment"
    # 2. Figures.
    cells: list[tuple[str, str, str | None]] = [
        ("Ran at" if job.ended else "Runs at", "SageMaker", where),
        ("Made for", instance, "SageMaker chooses the instance that it runs on"),
    ]
    if aws.status:
        cells.append(("At AWS", WORDS.get(aws.status, aws.status), f"checked {ago(aws.at)}" if not job.ended else None))
    if "seconds" in job.result and "artifact" not in job.result:
        cells.append(("Ran", seconds(job.result["seconds"]), "by AWS's clock"))
    shell.show_figures(cells)
    # 3. Links to the console and the result.
    if arn:
        st.code(arn, language=None, wrap_lines=True)
        with st.container(horizontal=True, vertical_alignment="center"):
            st.link_button(
                "SageMaker's console",
                optimization_job_status.console_url(arn),
                icon=":material/open_in_new:",
                help="Of the region. The job is in Studio, under Jobs, Inference optimization.",
            )
            if output := job.result.get("output"):
                st.link_button(
                    "The result in S3",
                    optimization_job_status.console_url(arn, str(output)),
                    icon=":material/open_in_new:",
                )
    return str(job.state)


def show_result(job: JobView, specification: dict[str, Any]) -> None:
    """Show what is in S3, and the next step."""
    # Where the result is, and what AWS left open.
    output, artifact = str(job.result.get("output") or ""), job.result.get("artifact")
    image = str(job.result.get("image") or "an image of your choice")
    st.markdown(f"**The result** is in {code(output)}, to be served with {code(image)}.")
    if left := job.result.get("left"):
        st.info(plain(str(left)), icon=":material/cloud:")
    # A fetched result can be deployed.
    if artifact:
        bucket, instance = output.removeprefix("s3://").split("/")[0], hardware_name(specification["target"])
        st.caption("It was fetched, hashed and registered here. To serve it on SageMaker (first with `--dry-run`):")
        role = specification["request"]["RoleArn"]
        place = f"--to sagemaker --instance {instance} --role {role} --bucket {bucket}"
        command = f"whetstone deploy {artifact} {place} --dry-run"
        st.code(command, language="bash", wrap_lines=True)
        return
    # Otherwise it can only be imported.
    st.caption(
        "The result is only in S3. Weights that a server can read can be imported from there; a compiled result "
        "is served by its image."
    )
    navigation.link("import", "Import it as a model", ":material/download:", import_folder=output)
