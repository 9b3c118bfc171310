"""The form of a training: model, kind of draft, loss, time and prompts."""

from __future__ import annotations

from typing import Any, NamedTuple

import streamlit as st
from pydantic import ValidationError

from app import idempotency, model_field, navigation, shell, url_parameters
from app.builder.calibration_upload import upload
from app.field_labels import error_sentence
from app.formatting import message
from app.session import disabled_unless_allowed
from backend.domain.errors import WhetstoneError
from backend.domain.figures import code
from backend.domain.jobs.jobs import TrainSpec
from backend.domain.recipe.draft_training import KINDS, LOSS_NAMES, LOSS_TITLES, TITLES, Training
from backend.domain.validation import first_flaw
from backend.present.source_names import short_name
from backend.service import Workspace
from backend.service.models import model_names
from backend.service.plans import training

PURPOSE, REFUSED, PROMPTS = "train", "train_refused", "train_prompts"
MOST_MINUTES = 10_080.0
ABOUT = {
    "small": (
        "A small model with the same tokenizer, which proposes one token after another. Works with every "
        "model; pays if the model is many times larger."
    ),
    "eagle3": (
        "One layer that continues from what the model computed. Works with families for which vLLM supports it."
    ),
    "medusa": "Several heads that each propose one future token from the model's last state, in one pass.",
}
LOSS_HELP = (
    "Training objective. LK hybrid optimizes acceptance itself, forward KL covers everything the model may say, "
    "reverse KL what it says most; cross-entropy only learns the next token and serves as the control."
)


class TrainRequest(NamedTuple):
    """Either a `spec` that can be submitted, or the `obstacle` that says why not."""

    spec: TrainSpec | None = None
    obstacle: str | None = None


def choose_model(opened: Workspace) -> str:
    """Draw the model that the draft is for. Return its source."""
    # Offer models here, and the one of the address even if it is unknown.
    labels = model_names.list_present(opened)
    current = url_parameters.query().get("model") or model_names.choose_first(opened, list(labels))
    choices = list(dict.fromkeys([*labels, current]))
    # Draw the field; the choice goes into the address.
    chosen = model_field.draw(
        opened,
        "Model",
        choices,
        labels,
        index=choices.index(current),
        key=f"train-model-{current}",
        format_func=lambda name: labels.get(name) or short_name(name),
        help=(
            "The model that the draft is for. It answers the prompts itself, and the draft learns from its answers. "
            f"Chosen: {code(current)}"
        ),
    )
    if chosen and url_parameters.query().get("model") != chosen:
        url_parameters.query()["model"] = chosen
    return chosen or current


def choose_options() -> dict[str, Any]:
    """Draw the fields of `Training`. Return those that were given."""
    # The kind of draft decides which fields there are.
    kind = st.radio(
        "Draft", KINDS, format_func=lambda name: TITLES[name], key="train_kind", horizontal=True, bind="query-params"
    )
    st.caption(ABOUT[kind])
    # Time and loss, which most people choose.
    left, right = st.columns(2)
    minutes = left.number_input(
        "Minutes",
        min_value=1.0,
        max_value=MOST_MINUTES,
        value=10.0,
        step=5.0,
        key="train_minutes",
        bind="query-params",
        help="From the start of the job to the draft, the model's answers included.",
    )
    loss = right.selectbox(
        "Loss",
        LOSS_NAMES,
        index=LOSS_NAMES.index("lk_hybrid"),
        format_func=lambda name: LOSS_TITLES[name],
        key="train_loss",
        help=LOSS_HELP,
        bind="query-params",
    )
    # What rarely needs a change.
    with st.popover("More", icon=":material/tune:"):
        tokens = st.number_input(
            "Draft tokens", min_value=1, max_value=16, value=4, key="train_tokens", bind="query-params"
        )
        seed = st.number_input("Seed", min_value=0, max_value=2**31 - 1, value=0, key="train_seed", bind="query-params")
        own = _small_options() if kind == "small" else {}
    return {"kind": kind, "loss": loss, "minutes": minutes, "tokens": tokens, "seed": seed, **own}


def _small_options() -> dict[str, Any]:
    # How the small model begins.
    start = st.radio(
        "Begins as",
        ["fresh", "pruned"],
        key="train_start",
        horizontal=True,
        bind="query-params",
        help=(
            "Fresh: a narrow model whose embeddings are the leading components of the model's. Pruned: some "
            "layers of the model."
        ),
    )
    # Its size; a pruned one has the width of the model.
    layers = st.number_input("Layers", min_value=1, max_value=64, value=None, key="train_layers", bind="query-params")
    hidden = None
    if start == "fresh":
        hidden = st.number_input(
            "Width", min_value=32, max_value=65_536, value=None, step=32, key="train_hidden", bind="query-params"
        )
    # Whose answers it learns from.
    own = st.slider(
        "Share of its own answers",
        0.0,
        1.0,
        0.0,
        0.1,
        key="train_on-policy",
        bind="query-params",
        help="Share of batches answered by the draft itself (DistillSpec).",
    )
    return {"start": start, "layers": layers, "hidden": hidden, "on_policy": own}


def choose_prompts(opened: Workspace) -> str | None:
    """Draw the field of prompts. Return a path; None for the bundled prompts."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        path = st.text_input(
            "Prompts",
            key=PROMPTS,
            bind="query-params",
            placeholder="bundled, or a file",
            width="stretch",
            help=(
                "JSONL or Parquet with `prompt` or `text`, or a text file with one prompt per paragraph. Prompts"
                " that evaluations hold out are left out. A chat model with few prompts writes more itself."
            ),
        )
        upload(opened, "train_upload", _set_prompts)
    return path.strip() or None


def _set_prompts(path: str) -> None:
    st.session_state[PROMPTS] = path


def check(opened: Workspace, source: str, values: dict[str, Any], path: str | None) -> TrainRequest:
    """Return the request after every check that needs no start."""
    try:
        return TrainRequest(training.prepare(opened, source, Training.model_validate(values), path))
    except ValidationError as error:
        flaw = first_flaw(error)
        return TrainRequest(obstacle=f"{flaw.field}: {flaw.problem}.")
    except WhetstoneError as error:
        return TrainRequest(obstacle=error_sentence(error))


def submit_button(opened: Workspace, request: TrainRequest) -> None:
    """Draw the button that submits one job per request, however often it is clicked; then the link to it."""
    # 1. A job that was submitted for exactly this is linked.
    fingerprint = request.spec.model_dump_json() if request.spec else ""
    job_id = idempotency.submitted_job(PURPOSE, fingerprint) if fingerprint else None
    if job_id:
        navigation.link("job", "Open the job", ":material/monitoring:", id=job_id)
        st.button("Run it again", key="train_again", on_click=idempotency.renew, args=(PURPOSE,))
        return
    # 2. The button.
    options = {
        "disabled": request.spec is None,
        "help": message(request.obstacle) if request.obstacle else None,
        **disabled_unless_allowed(opened),
    }
    if st.button("Train", key="train_submit", type="primary", icon=":material/play_arrow:", **options) and request.spec:
        with shell.errors_in_session(REFUSED):
            job = training.submit(opened, request.spec, submission=idempotency.submission_key(PURPOSE, fingerprint))
            idempotency.remember_job(PURPOSE, job.id)
            navigation.go("job", id=job.id)
        st.rerun()
    shell.show_session_error(REFUSED)
