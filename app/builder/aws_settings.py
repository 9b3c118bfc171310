"""Draw the AWS settings of a SageMaker job, stored in the session, and the dry run of it or of a Neuron compilation."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

import streamlit as st

from app.formatting import message, plain, shorten
from backend.domain.managed.aws_settings import WORDS
from backend.service import Workspace
from backend.service.plans.neuron_compilation import CompilationPreview
from backend.service.plans.sagemaker_jobs import ManagedPreview

SETTINGS = "build_aws"
"""The AWS settings of this session, by the names of `--aws`."""
FIRST = {
    "role": ("Role (ARN)", "arn:aws:iam::123456789012:role/NAME"),
    "output": ("Output location", "s3://BUCKET/PREFIX"),
    "source": ("Weights location", "s3://BUCKET/PREFIX or model:NAME"),
    "upload": ("Or upload local weights to", "s3://BUCKET/PREFIX"),
}
MORE = {
    "region": ("Region", "us-east-1"),
    "max-runtime": ("Ends after", "10h"),
    "kms-key": ("Key that encrypts the result", "alias/NAME"),
    "subnets": ("Subnets of the VPC", "subnet-1,subnet-2"),
    "security-groups": ("Security groups of the VPC", "sg-1"),
    "image": ("Container image", "SageMaker chooses"),
    "training-data": ("Prompts for an EAGLE head", "s3://BUCKET/PREFIX"),
}
"""Setting -> its label and the placeholder of its field."""
LINES = "lines"
Preview = ManagedPreview | CompilationPreview


def choose(opened: Workspace, *, here: bool) -> tuple[str, ...]:
    """Return the AWS settings as NAME=VALUE, as `--aws` takes them.

    Settings from the environment of the studio are filled in. `here`: the weights of the model are on this machine.
    """
    # 1. The fields that most jobs need, then the rest behind a button.
    values: dict[str, str] = st.session_state.setdefault(SETTINGS, dict(opened.settings.aws))
    with st.container(border=True, key="build_aws-settings"):
        names = list(FIRST) if here else list(FIRST)[:-1]
        for first in range(0, len(names), 2):  # rows, so that they stand in this order on a phone too
            for half, name in zip(st.columns(2), names[first : first + 2], strict=False):
                with half:
                    values[name] = _field(values, name, *FIRST[name])
        with st.container(horizontal=True, vertical_alignment="center"):
            accepted = st.checkbox(
                "I accept the model's licence (EULA)",
                values.get("accept-eula") == "yes",
                key="build_aws-accept-eula",
                help="Required for models behind a licence.",
            )
            values["accept-eula"] = "yes" if accepted else ""
            fetched = st.checkbox(
                "Fetch the result",
                values.get("fetch") != "no",
                key="build_aws-fetch",
                help=(
                    "The result becomes an artifact here, to evaluate, serve and deploy. Otherwise it is only in S3."
                ),
            )
            values["fetch"] = "" if fetched else "no"
            with st.popover("More AWS settings", icon=":material/tune:", key="build_aws-more"):
                for name, (label, example) in MORE.items():
                    values[name] = _field(values, name, label, example)
                values[LINES] = st.text_area(
                    "Tags and variables of the container",
                    values.get(LINES, ""),
                    key="build_aws-lines",
                    max_chars=4000,
                    placeholder="tag.team=search\nenv.OPTION_DTYPE=bf16",
                    help="One per line. No secrets: everybody who sees the job sees them.",
                )
    # 2. NAME=VALUE of each; one that the environment has is given even where it was emptied.
    lines = [line.strip() for line in values[LINES].splitlines() if line.strip()]
    own = [name for name in values if name != LINES and (values[name] or name in opened.settings.aws)]
    return (*(f"{name}={values[name]}" for name in own), *lines)


def _field(values: dict[str, str], name: str, label: str, example: str) -> str:
    words = st.text_input(
        label,
        values.get(name, ""),
        key=f"build_aws-{name}",
        placeholder=example,
        max_chars=1000,
        help=f"{WORDS[name][:1].upper()}{WORDS[name][1:]}.",
    )
    return (words or "").strip()


def show_dry_run(preview: Preview | None, shown_notes: Collection[str]) -> None:
    """Show the exact requests to AWS, or the compilation, as `--dry-run` does. `shown_notes` are not repeated."""
    if preview is None:
        return
    notes = [note for note in preview.notes if note not in shown_notes]
    if isinstance(preview, ManagedPreview):
        _requests(preview, notes)
    else:
        _compilation(preview, notes)


def _requests(preview: ManagedPreview, notes: Sequence[str]) -> None:
    # The notes of the plan, then the exact requests.
    calls = len(preview.requests)
    label = f"AWS requests ({calls})"
    with st.expander(label, icon=":material/cloud_upload:", key="build_aws-request"):
        for note in notes:
            st.markdown(f"- {message(note)}")
        for request in preview.requests:
            st.caption("create_optimization_job, named by the job when it is submitted")
            st.code(json.dumps(request, indent=2), language="json", wrap_lines=True)
        # The price of the instance.
        if preview.requests:
            price = (
                "No price is known."
                if preview.price_per_hour is None
                else f"{preview.price_per_hour:,.4g} {preview.price}"
            )
            st.caption(plain(price))


def _compilation(preview: CompilationPreview, notes: Sequence[str]) -> None:
    with st.expander(f"What is compiled: key {preview.key}", icon=":material/memory:", key="build_neuron-plan"):
        rows = [
            f"| {plain(name)} | {plain(value if ' ' in value else shorten(value, 20))} |"
            for name, value in preview.rows
            if value != "-"
        ]
        st.markdown("\n".join(["| Field | |", "|:--|:--|", *rows]))
        for note in notes:
            st.markdown(f"- {message(note)}")
        st.code(json.dumps(preview.model_dump(mode="json"), indent=2), language="json", wrap_lines=True, height=320)
