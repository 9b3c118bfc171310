"""Results of other load generators beside our figures: upload, selection, a chart with open marks, definitions."""

from __future__ import annotations

import streamlit as st

from app import charts, navigation, url_parameters
from app.field_labels import error_sentence
from app.formatting import message, plain
from app.navigation import page_key
from app.session import disabled_unless_allowed
from backend.domain.errors import WhetstoneError
from backend.domain.evaluation.comparison import HEADLINE
from backend.domain.evaluation.document import Evaluation
from backend.domain.imported.imported_result import NO_TEST, TITLES, ImportedResult, definition_rows, figure_rows
from backend.domain.roles import Action
from backend.present.charts import imported_results as charts_imported
from backend.service import Workspace
from backend.service.evaluations import imported_results

ADDRESS = "imported"


def show(opened: Workspace, document: Evaluation | None) -> None:
    """Draw the section. `document` is the evaluation on the page, None if there is none."""
    st.subheader("Measured by other tools")
    st.caption("GuideLLM 0.8 and vLLM's bench as JSON. Their figures have open marks beside ours and get no verdict.")
    _upload(opened)
    chosen = _choose(opened)
    if chosen:
        show_results(chosen, document)


def chosen_ids() -> list[str]:
    """Return the ids of the address, in order."""
    return navigation.distinct_values(url_parameters.query().get_all(ADDRESS))


def _upload(opened: Workspace) -> None:
    # Take the files of one run.
    files = st.file_uploader(
        "Result of another tool",
        type=["json", "jsonl"],
        accept_multiple_files=True,
        key=page_key("imported_uploaded"),
        **{
            "help": "vLLM's bench writes one file per level: upload those of one run together.",
            **disabled_unless_allowed(opened, Action.ADD_RESULT),
        },
    )
    if not files:
        return
    # Read them once, and remember what was refused until other files come.
    mark = " ".join(file.file_id for file in files)
    refused = st.session_state.get(page_key("imported_refused"), ("", ""))
    if refused[0] != mark:
        try:
            result = imported_results.add(opened, [(file.name, file.getvalue()) for file in files])
        except WhetstoneError as error:
            refused = (mark, error_sentence(error))
        else:
            refused = (mark, "")
            navigation.set_parameter(ADDRESS, list(dict.fromkeys([*chosen_ids(), result.id])))
        st.session_state[page_key("imported_refused")] = refused
    # Show why they were refused.
    if refused[1]:
        st.error(message(refused[1]), icon=":material/error:")


def _choose(opened: Workspace) -> list[ImportedResult]:
    # Without readable results there is nothing to choose.
    try:
        importeds = {result.id: result for result in imported_results.listing(opened)}
    except WhetstoneError as error:
        st.error(message(error), icon=":material/error:")
        return []
    if not importeds:
        return []
    # The address says what is chosen.
    selected = [result_id for result_id in chosen_ids() if result_id in importeds]
    chosen = navigation.multiselect(
        "Imported results",
        importeds,
        selected,
        name=ADDRESS,
        key=page_key("imported"),
        placeholder="Choose one or more",
        format_func=lambda result_id: (
            f"{importeds[result_id].name}, {importeds[result_id].measured_at or 'moment not recorded'} ({result_id})"
        ),
    )
    return [importeds[result_id] for result_id in chosen]


def show_results(results: list[ImportedResult], document: Evaluation | None) -> None:
    """Draw one metric as a chart, then every figure of the files, then the differing definitions."""
    # Where each result comes from, and what to know about it.
    for result in results:
        measured_at = plain(result.measured_at or "time not recorded")
        st.markdown(f"**{plain(result.name)}**: {plain(result.provenance)}, {measured_at}")
        for note in result.notes:
            st.caption(f":material/warning: {plain(note)}")
    # One metric beside ours, as a chart.
    metric = st.selectbox(
        "Beside ours",
        HEADLINE,
        format_func=lambda name: TITLES[name],
        key=page_key("imported_metric"),
        bind="query-params",
    )
    charts.show(charts_imported.imported_comparison(document, results, metric, charts.theme()), "imported-chart")
    # Every figure, then which definitions differ.
    st.dataframe(
        figure_rows(results),
        hide_index=True,
        placeholder="not in the file",
        alt="Every figure that the imported files hold",
    )
    st.dataframe(definition_rows(results), hide_index=True, alt="Which definitions coincide with ours and which do not")
    st.caption(f"{NO_TEST} What a file does not hold is left empty.")
