"""What a job on SageMaker needs, kept in the session, and what it or a compilation for Neuron would be: the dry run."""

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
    "output": ("The result goes to", "s3://BUCKET/PREFIX"),
    "source": ("The weights lie in", "s3://BUCKET/PREFIX or model:NAME"),
    "upload": ("Or: they lie here and go below", "s3://BUCKET/PREFIX"),
}
MORE = {
    "region": ("Region", "us-east-1"),
    "max-runtime": ("Ends after", "10h"),
    "kms-key": ("Key that encrypts the result", "alias/NAME"),
    "subnets": ("Subnets of the VPC", "subnet-1,subnet-2"),
    "security-groups": ("Security groups of the VPC", "sg-1"),
    "image": ("Image that optimizes", "SageMaker chooses"),
    "training-data": ("Prompts for an EAGLE head", "s3://BUCKET/PREFIX"),
}
"""Setting -> label, and what stands there as long as nothing does."""
LINES = "lines"
Preview = ManagedPreview | CompilationPreview


def choose(opened: Workspace, *, here: bool) -> tuple[str, ...]:
    """As `--aws` takes them, NAME=VALUE each; those that the environment of the studio sets are filled in. `here`: the
    model's weights are."""
    held: dict[str, str] = st.session_state.setdefault(SETTINGS, dict(opened.settings.aws))
    with st.container(border=True, key="build_aws-settings"):
        names = list(FIRST) if here else list(FIRST)[:-1]
        for first in range(0, len(names), 2):  # rows, so that they stand in this order on a phone too
            for half, name in zip(st.columns(2), names[first : first + 2], strict=False):
                with half:
                    held[name] = _field(held, name, *FIRST[name])
        with st.container(horizontal=True, vertical_alignment="center"):
            accepted = st.checkbox(
                "I accept the model's licence (EULA)",
                held.get("accept-eula") == "yes",
                key="build_aws-accept-eula",
                help="Models behind a licence are not optimized without.",
            )
            held["accept-eula"] = "yes" if accepted else ""
            fetched = st.checkbox(
                "Fetch the result",
                held.get("fetch") != "no",
                key="build_aws-fetch",
                help="It becomes an artifact here, to evaluate, serve and deploy; else it stays in S3 alone.",
            )
            held["fetch"] = "" if fetched else "no"
            with st.popover("More AWS settings", icon=":material/tune:", key="build_aws-more"):
                for name, (label, example) in MORE.items():
                    held[name] = _field(held, name, label, example)
                held[LINES] = st.text_area(
                    "Tags and variables of the container",
                    held.get(LINES, ""),
                    key="build_aws-lines",
                    max_chars=4000,
                    placeholder="tag.team=search\nenv.OPTION_DTYPE=bf16",
                    help="One a line. No secrets: all see them who see the job.",
                )
    lines = [line.strip() for line in held[LINES].splitlines() if line.strip()]
    own = [name for name in held if name != LINES and (held[name] or name in opened.settings.aws)]
    return (*(f"{name}={held[name]}" for name in own), *lines)


def _field(held: dict[str, str], name: str, label: str, example: str) -> str:
    words = st.text_input(
        label,
        held.get(name, ""),
        key=f"build_aws-{name}",
        placeholder=example,
        max_chars=1000,
        help=f"{WORDS[name][:1].upper()}{WORDS[name][1:]}.",
    )
    return (words or "").strip()


def show_dry_run(found: Preview | None, said: Collection[str]) -> None:
    """What would be asked of AWS, or compiled, exactly: as `--dry-run` has it. `said`: notes that stand above
    already."""
    if found is None:
        return
    notes = [note for note in found.notes if note not in said]
    if isinstance(found, ManagedPreview):
        _requests(found, notes)
    else:
        _compilation(found, notes)


def _requests(found: ManagedPreview, notes: Sequence[str]) -> None:
    calls = len(found.requests)
    label = f"What AWS is asked: {calls} call{'s' if calls != 1 else ''}"
    with st.expander(label, icon=":material/cloud_upload:", key="build_aws-request"):
        for note in notes:
            st.markdown(f"- {message(note)}")
        for each in found.requests:
            st.caption("create_optimization_job, named by the job when it is submitted")
            st.code(json.dumps(each, indent=2), language="json", wrap_lines=True)
        if found.requests:
            price = (
                "No price is known." if found.price_per_hour is None else f"{found.price_per_hour:,.4g} {found.price}"
            )
            st.caption(plain(price))


def _compilation(found: CompilationPreview, notes: Sequence[str]) -> None:
    with st.expander(f"What is compiled: key {found.key}", icon=":material/memory:", key="build_neuron-plan"):
        rows = [
            f"| {plain(name)} | {plain(value if ' ' in value else shorten(value, 20))} |"
            for name, value in found.rows
            if value != "-"
        ]
        st.markdown("\n".join(["| Field | |", "|:--|:--|", *rows]))
        for note in notes:
            st.markdown(f"- {message(note)}")
        st.code(json.dumps(found.model_dump(mode="json"), indent=2), language="json", wrap_lines=True, height=320)
