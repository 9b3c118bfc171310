"""`whetstone optimize --target sagemaker:...`: the job is AWS's, watched here like any other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

import typer

from backend.cli.options.job_options import JobOptions
from backend.cli.output import emit, out
from backend.cli.submit_and_wait import outcome_document, submit_and_wait
from backend.domain.errors import InvalidOptions
from backend.domain.figures import counted
from backend.domain.managed.aws_settings import WORDS
from backend.service import Workspace
from backend.service.jobs import jobs
from backend.service.plans import sagemaker_jobs
from backend.service.plans.cases import Case
from backend.service.plans.sagemaker_jobs import ManagedPreview

AwsSettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--aws",
        metavar="NAME=VALUE",
        help="With a target sagemaker:ml.*, once for each: "
        + "; ".join(f"{name}, {what}" for name, what in WORDS.items())
        + ".",
    ),
]

PreviewFormat = Annotated[
    Literal["policy"] | None,
    typer.Option("--as", help="With a target sagemaker:ml.*: print the IAM policy that the job needs; start nothing."),
]


def submit_to_sagemaker(
    workspace: Workspace,
    case: Case,
    aws_settings: Sequence[str],
    job_options: JobOptions,
    *,
    written_as: str | None,
    dry_run: bool,
    wait: bool,
    as_json: bool,
) -> None:
    """Preview, submit or wait for the job of a `sagemaker:` target."""
    # 1. Only print the IAM policy or the requests.
    if written_as:
        out(sagemaker_jobs.policy_text(workspace, case, aws_settings), newline=False)
        return
    if dry_run:
        preview = sagemaker_jobs.preview(workspace, case, aws_settings)
        emit(preview, as_json=as_json, text=_preview_text(preview))
        return
    submit = partial(
        sagemaker_jobs.submit,
        workspace,
        case,
        aws_settings,
        submission=jobs.submission_key(workspace, job_options.key),
        terms=job_options.terms,
    )
    ended = submit_and_wait(workspace, submit, wait=wait, as_json=as_json)
    emit(outcome_document(ended), as_json=as_json, text=_text(ended.result))


def check_options(target: str, aws_settings: Sequence[str], written_as: str | None, *, then_evaluate: bool) -> None:
    """Raises InvalidOptions for options that do not go with the target."""
    if written_as and not sagemaker_jobs.is_sagemaker(target):
        raise InvalidOptions(
            f"--as goes with a target such as sagemaker:ml.g6.12xlarge, not with {target}: leave it out."
        )
    if aws_settings and not sagemaker_jobs.is_sagemaker(target):
        raise InvalidOptions(
            f"--aws goes with a target such as sagemaker:ml.g6.12xlarge, not with {target}: leave it out."
        )
    if then_evaluate and sagemaker_jobs.is_sagemaker(target):
        raise InvalidOptions("--then-evaluate works only for jobs that run here: SageMaker's results are in S3.")


def _preview_text(preview: ManagedPreview) -> str:
    head = f"{preview.model} on {preview.target}: {counted(len(preview.requests), 'call')} of AWS"
    price = "price unknown" if preview.price_per_hour is None else f"{preview.price_per_hour:.4g} {preview.price}"
    calls = [f"create_optimization_job {json.dumps(request, indent=1)}" for request in preview.requests]
    return "\n".join([f"{head}.", *calls, *([price] if calls else []), *preview.notes])


def _text(result: dict[str, Any]) -> str:
    spent = f" for about {result['usd']:.2f} USD" if result["usd"] is not None else ""
    lines = [
        f"The result is in {result['output']} after {result['seconds']:.0f} s{spent}.",
        f"Serve it with {result['image']}.",
    ]
    if "artifact" in result:
        lines.append(f"It is {result['artifact']} here.")
    elif "left" in result:
        lines.append(result["left"])
    return "\n".join(lines)
