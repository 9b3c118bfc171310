"""Next steps with something that was made or measured: serve, chat, call it from a program, download, measure."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import streamlit as st

from app import idempotency, navigation, quality_confirmation, shell, url_parameters
from app.field_labels import error_sentence
from app.formatting import message, plain, size
from app.navigation import page_key
from app.serving import engine_select, other_engines
from app.session import disabled_unless_allowed
from backend.domain.errors import WhetstoneError
from backend.domain.evaluation.document import Variant
from backend.domain.figures import code
from backend.domain.jobs import gguf_export
from backend.domain.recipe.serving_engines import ENGINES, artifact_id
from backend.domain.roles import Action
from backend.present import serve_command
from backend.present.source_names import short_name
from backend.present.words import engines
from backend.service import Workspace
from backend.service.evaluations import reports
from backend.service.jobs import artifacts
from backend.service.jobs import gguf_export as gguf_exports
from backend.service.models import models, variants
from backend.service.serving import chat_servers, local_endpoints, playground, serve
from backend.service.serving.serve import ServedVariant

MOST_BYTES = 500_000_000
"""The largest artifact that the browser downloads, since it is packed in memory."""


ICON_PIXELS, LETTER_PIXELS = 62, 6.6


def button_width(label: str) -> int:
    """Return the pixels of a button with an icon and that label. A button that is as wide before its label is drawn
    moves nothing beside it."""
    return round(ICON_PIXELS + LETTER_PIXELS * len(label))


def show(
    opened: Workspace,
    sources: Sequence[str],
    *,
    baseline: str | None = None,
    evaluation: str | None = None,
    primary: bool = True,
    evaluates: bool = True,
) -> None:
    """Draw the steps for one of `sources` (models, artifacts, folders), at first the last one.

    `baseline` is what it is compared with; `evaluation` is the id of the report that is offered. `primary`: the chat is
    the page's primary button; False where the page has another. `evaluates`: offer the evaluation; False where another
    button of the page does.
    """
    # Choose the variant; without one that can be resolved there is no step.
    st.subheader("What next?")
    with st.container(horizontal=True, vertical_alignment="center"):
        source = _choose_engine(opened, _choose_source(sources))
        try:
            variant = variants.resolve(opened, source)
        except WhetstoneError as error:
            st.caption(message(error))
            return
        # What can be done here, and what can be downloaded.
        chat_note = _local_actions(opened, variant, baseline, primary=primary, evaluates=evaluates)
        _downloads(opened, variant, evaluation)
    # Say what a chat lacks or waits for, why it cannot run here, and how to go on by commands.
    if chat_note:
        st.caption(message(chat_note))
    if variant.kind == "artifact" and (why := variants.why_unserved(opened, source)):
        st.caption(message(f"It cannot run on this machine: {why}."))
    if variant.model_path is not None:
        _commands(opened, variant)


def _choose_engine(opened: Workspace, source: str) -> str:
    """Draw the field of the engine where several can serve it. Return the source on the chosen engine."""
    # 1. The choice of before, of this very source.
    offer = engine_select.find_offer(opened, source)
    if offer is None or len(offer.choices) < 2:
        return source
    state = page_key("next_source")
    chosen: dict[str, str] = st.session_state.setdefault(state, {})
    current = chosen.get(source, source)
    # 2. The field.
    with st.container(width=200):
        engine_select.draw(
            offer, current, key=page_key("next_engine"), write=lambda named: chosen.update({source: named})
        )
    return current


def _choose_source(sources: Sequence[str]) -> str:
    if len(sources) == 1:
        return sources[0]
    chosen: str = st.selectbox(
        "With",
        sources,
        len(sources) - 1,
        key=page_key("next_with"),
        format_func=short_name,
        label_visibility="collapsed",
        width=260,
    )
    return chosen


def _local_actions(opened: Workspace, variant: Variant, baseline: str | None, *, primary: bool, evaluates: bool) -> str:
    """Draw what runs on this machine: a chat, an evaluation, a server. Return the note on the chat; empty if none."""
    # 1. What can run, and whether the person accepts its quality.
    source = variant.source
    able = variant.kind != "artifact" or not variants.why_unserved(opened, source)
    pair = [value for value in dict.fromkeys([baseline, source]) if value]
    anyway = quality_confirmation.confirm(opened, [source], "next", say=False)
    # 2. Chat and evaluate.
    note = _chat(opened, pair, anyway=anyway, primary=primary) if able and not opened.read_only else ""
    if able and evaluates:
        label = "Evaluate against the original" if len(pair) > 1 else "Evaluate it"
        navigation.link("evaluate", label, ":material/speed:", variants=navigation.join_values(*pair))
    # 3. Serve it alone.
    title = ENGINES[variant.serving.engine_name].title
    options = {
        "help": f"Makes an endpoint of it on this machine, served by {title}, which stays until you stop it.",
        **disabled_unless_allowed(opened, Action.ADD_ENDPOINT),
    }
    options = {"disabled": not (able and anyway), "width": button_width("Serve"), **options}
    if st.button("Serve", icon=":material/dns:", key=page_key("next_serve"), **options):
        with shell.errors_inline():
            local_endpoints.add(opened, source, anyway=anyway)
            navigation.go("endpoints")
    return note


def _chat(opened: Workspace, pair: Sequence[str], *, anyway: bool, primary: bool) -> str:
    """Draw the button that starts the servers of `pair` (the original, then the result) and opens their chat. Return
    what it lacks or waits for; empty if nothing."""
    # 1. The servers that the memory allows, and how long they take.
    try:
        planned = chat_servers.plan_servers(opened, pair)
    except WhetstoneError as error:
        return f"No chat: {error_sentence(error)}"
    label = "Chat: original beside result" if len(planned.sources) > 1 else "Chat with it"
    help_words = "Starts a server for each on this machine, one after the other."
    if planned.left_out is not None:
        label = "Chat with the result alone"
    if planned.is_ready:
        label, help_words = f"{label} · ready now", "The servers run already."
    elif planned.ready is not None and planned.waits_for is None:
        label = f"{label} · ready in {engines.expected_words(planned.ready.seconds)}"
        help_words += f" The time is {planned.ready.basis}."
    # 2. The button.
    options = {"help": message(help_words), "type": "primary" if primary else "secondary"}
    options |= disabled_unless_allowed(opened)
    key, icon = page_key("next_chat"), ":material/chat:"
    if st.button(label, icon=icon, key=key, **{"disabled": not anyway, "width": button_width(label), **options}):
        with shell.errors_inline():
            mark = idempotency.submission_key("chat", ",".join(planned.sources), for_s=idempotency.DOUBLE_CLICK_S)
            if not planned.is_ready:
                job = serve.start(opened, planned.sources, submission=mark, anyway=anyway)
                idempotency.remember_job("chat", job.id)
            navigation.go("playground", **url_parameters.playground_parameters(planned.sources))
    # 3. What is not as asked.
    if planned.left_out is not None:
        return f"Without the original: {planned.left_out}"
    return f"The servers start when “{planned.waits_for}” has ended." if planned.waits_for is not None else ""


def _downloads(opened: Workspace, variant: Variant, evaluation: str | None) -> None:
    """Draw the files to download."""
    # The report of the evaluation.
    if evaluation is not None:
        st.download_button(
            "Report",
            lambda: reports.write_page(opened, evaluation),
            f"{evaluation}.html",
            "text/html",
            on_click="ignore",
            key=page_key("next_report"),
            width=button_width("Report"),
            icon=":material/description:",
            help="One HTML file that needs no network.",
        )
    # The artifact, unless it is too large for a browser.
    if variant.kind == "artifact" and (variant.bytes_on_disk or 0) <= MOST_BYTES and not opened.read_only:
        label = f"Download ({size(variant.bytes_on_disk)})"
        st.download_button(
            label,
            lambda: artifacts.archive(opened, artifact_id(variant.source)),
            f"{artifact_id(variant.source)}.tar",
            "application/x-tar",
            on_click="ignore",
            key=page_key("next_download"),
            width=button_width(label),
            icon=":material/download:",
        )
        _gguf_download(opened, variant)


def _gguf_download(opened: Workspace, variant: Variant) -> None:
    """Draw the download of one file for llama.cpp and programs built on it, where one can be written."""
    artifact = artifact_id(variant.source)
    if gguf_export.find_refusal(artifacts.show(opened, artifact).manifest) is not None:
        return
    has_file = variant.gguf is not None
    label = "GGUF file" if has_file else "Export as GGUF"
    st.download_button(
        label,
        lambda: gguf_exports.read(opened, artifact),
        gguf_export.file_name(artifacts.show(opened, artifact).manifest),
        "application/octet-stream",
        on_click="ignore",
        key=page_key("next_gguf"),
        width=button_width(label),
        icon=":material/deployed_code:",
        help="One file with weights and tokenizer for llama.cpp; Ollama and LM Studio read such files too."
        + ("" if has_file else " It is written of the same numbers and compared before the download begins."),
    )


def _commands(opened: Workspace, variant: Variant) -> None:
    """Draw the commands to copy."""
    title = ENGINES[variant.serving.engine_name].title
    names = (title, *serve_command.CLIENTS, "Files", "Other engines")
    command, *clients, files, elsewhere = st.tabs(names)
    with command:
        st.code(serve_command.command(variant), language=None, wrap_lines=True)
    show_client_code(clients, variant.name, chat=bool(playground.has_chat_template(variant.model_path)))
    with files:
        st.code(variant.gguf or variant.model_path, language=None, wrap_lines=True)
        st.caption(
            "The GGUF file on the machine of the studio, with weights and tokenizer."
            if variant.gguf
            else "The folder on the machine of the studio: config.json, tokenizer and safetensors, as vLLM reads them."
        )
    with elsewhere:
        other_engines.show(opened, variant.source)


def show_clients(opened: Workspace, servers: Sequence[ServedVariant]) -> None:
    """Show how to send requests to each running server."""
    for server in servers:
        st.markdown(server_line(opened, server))
        show_client(opened, server)


def server_line(opened: Workspace, server: ServedVariant) -> str:
    """Return the name of a server, the model that it serves, and its address as code: a link to it would open a page
    that does not exist."""
    artifact, model = artifact_id(server.source), ""
    with suppress(WhetstoneError):
        model = artifacts.show(opened, artifact).manifest.parent.id if models.is_artifact(artifact) else ""
    made_of = f" (of {plain(short_name(model))})" if model else ""
    return f"**{plain(server.name)}**{made_of} answers at {code(_base_address(server))}"


def _base_address(server: ServedVariant) -> str:
    return f"{server.url.removesuffix('/v1')}/v1"


def show_client(opened: Workspace, server: ServedVariant) -> None:
    """Show a first request to a running server; a chat for a model with a chat template."""
    with shell.errors_inline():
        chats = playground.has_chat_template(variants.resolve(opened, server.source).model_path)
        show_client_code(
            st.tabs(list(serve_command.CLIENTS)),
            server.served_name or server.name,
            chat=bool(chats),
            url=_base_address(server),
            key_file=server.key_file,
        )


def show_client_code(
    places: Sequence[st.delta_generator.DeltaGenerator],
    name: str,
    *,
    chat: bool,
    url: str = serve_command.ADDRESS,
    key_file: str | None = None,
) -> None:
    """Show a first request in curl, in Python and in JavaScript."""
    writers = serve_command.CLIENTS.values()
    texts = [write(name, chat=chat, url=url, key_file=key_file) for write in writers]
    for place, text in zip(places, texts, strict=True):
        place.code(text, language=None, wrap_lines=True)  # the colours of a highlighted one cannot be read
