"""The test conditions of an evaluation: machine, versions, workload, and which levels are valid."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app import navigation
from app.formatting import cell, document_time, message, plain
from app.results import configuration_check
from backend.domain.evaluation import energy
from backend.domain.evaluation.document import Evaluation, Level, VariantResult
from backend.domain.evaluation.fingerprint import configuration_hash
from backend.domain.evaluation.soundness import (
    SHARED_PROCESSORS,
    invalidity_reasons,
    level_validity,
    validity_warnings,
)
from backend.domain.figures import code, counted, figure
from backend.domain.machine.hardware_lines import hardware_line, versions_line
from backend.present.words import engines, load_search, repeat_counts
from backend.present.words import workload_reading as workload_words
from backend.present.words.measurements import (
    INTERLEAVE,
    PREFIX_CACHE,
    answer_length,
    cache_hits,
    measured_slices,
    requests_asked,
)


def show(document: Evaluation) -> None:
    """Show load, repeats, evidence, the validity of each level, and energy."""
    if SHARED_PROCESSORS in document.warnings:
        st.caption(f":material/info: {message(SHARED_PROCESSORS)}")
    show_load(document)
    show_blocks(document)
    show_sources(document)
    configuration_check.show(document)
    show_validity(document)
    show_energy(document)


def show_load(document: Evaluation) -> None:
    """Show the number of requests and lines, the length of answers, and the prefix cache."""
    options, lines = document.options, document.workload.prompts
    st.caption(
        plain(
            f"Requests per repeat: {requests_asked(options)}, of {counted(lines, 'line')}. "
            f"Answers: {answer_length(options)}. Prefix cache: {PREFIX_CACHE[options.prefix_cache]}."
        )
    )


def show_provenance(document: Evaluation) -> None:
    when, hardware = document_time(document.measured_at), hardware_line(document.hardware)
    where = f"Measured {when} on {hardware} with {versions_line(document.versions)}"
    repeats = counted(document.options.repeats, "repeat")
    st.caption(plain(f"{where}. Workload {document.workload.name}, {repeats}, servers {document.interleave}."))
    for sentence in engines.engine_sentences(document):
        st.caption(message(sentence))
    for sentence in workload_words.document_sentences(document):
        st.caption(message(sentence))


def show_blocks(document: Evaluation) -> None:
    """Show the number of repeats, how it was decided, and the level of the tests."""
    if load_search.is_search(document):
        return
    st.caption(
        plain(f"Repeats: {repeat_counts.measured_repeats(document)}. Tests: {repeat_counts.describe_tests(document)}.")
    )
    if document.continues:
        navigation.link("evaluate", "The evaluation that it continues", ":material/history:", id=document.continues)


def show_sources(document: Evaluation) -> None:
    """Show what each variant was measured by: the folder, artifact or address behind its short name."""
    sources = [f"{code(result.name)}: {code(result.variant.source)}" for result in document.variants]
    st.caption(message(f"Variants: {'; '.join(sources)}."))


def validity_rows(document: Evaluation) -> list[dict[str, Any]]:
    """Return a row per variant and level: whether its figures are the server's, and why not."""
    return [_validity_row(result, level) for result in document.variants for level in result.levels]


def _validity_row(result: VariantResult, level: Level) -> dict[str, Any]:
    audit = level.audit
    return {
        "Variant": result.name,
        "Valid": level_validity(level),
        "Requested concurrency": level.load.cell,
        "Achieved concurrency": figure(audit.achieved_concurrency),
        "Client headroom": "not measured" if audit.headroom is None else f"{audit.headroom:.0%}",
        "Errors": ", ".join(f"{kind} {count}" for kind, count in level.errors.items()) or str(level.invocation_errors),
        "Repeats": measured_slices(level),
        "Prefix-cache hits": cache_hits(level),
        "Empty or one-token answers": level.empty_responses - level.tokenizer_failed + level.short_responses,
        "Looping answers": level.looping_outputs,
        "Loop lag p99 (ms)": figure(audit.loop_lag_ms_p99),
        "Other programs (cores)": figure(audit.others),
        "Why not": cell("; ".join(invalidity_reasons(level))),
    }


def show_validity(document: Evaluation) -> None:
    for doubt in validity_warnings(document.variants):
        st.warning(message(doubt), icon=":material/warning:")
    rows = validity_rows(document)
    if all(row["Valid"] != "no" for row in rows):
        words = "The load generator kept up at every level and at most one request in a hundred failed."
        st.success(words, icon=":material/check:")
    st.dataframe(rows, hide_index=True, alt="Validity of each level")
    st.caption(
        f"Configuration SHA-256 `{configuration_hash(document)[:16]}…`: load, variants and workload. "
        f"Workload SHA-256 `{document.workload.sha256[:16]}…`. "
        f"Order: {plain(INTERLEAVE.get(document.interleave, document.interleave))}."
    )


def show_energy(document: Evaluation) -> None:
    """Show joules per output token by the machine's own counters, or that it has none."""
    if rows := energy.energy_rows(document):
        st.subheader("Energy")
        st.dataframe(rows, hide_index=True, alt="Energy of each level by the machine's counters")
    st.caption(plain(energy.energy_basis(document)))
