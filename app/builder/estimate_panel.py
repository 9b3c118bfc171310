"""Draw the estimate of the recipe: speed, memory, the job, what is unknown, and the formulas on request."""

from __future__ import annotations

import streamlit as st

from app import charts, navigation, shell
from app.builder import estimate_figures
from app.builder.estimate_figures import Figure
from app.formatting import document_time, duration_range, message, plain, range_text, size
from app.load_bar import address
from app.models import memory_bar
from app.overview import tiles
from app.session import disabled_unless_allowed
from backend.domain.figures import streams
from backend.domain.machine.targets import target_kind
from backend.domain.planner.estimate import Estimate, JobNeeds
from backend.domain.planner.target_choice import TargetChoice
from backend.domain.roles import Action
from backend.present import load_words
from backend.service import Workspace
from backend.service.machines import machine

IN_ROW = 2
"""Tiles beside each other."""


def show(opened: Workspace, estimate: Estimate) -> None:
    """Show every estimated quantity as a range with its unit."""
    # 1. The load, and how far the estimate was corrected.
    load = estimate.load
    where = "this machine" if estimate.target == "local" else estimate.target
    st.caption(f"Estimated for {plain(where)}: {estimate.load_text}. {plain(_basis(estimate))}")
    if sentence := load_words.instances_sentence(estimate):
        st.info(message(sentence), icon=":material/stacks:")
    # 2. The figures that decide, and the memory as one bar.
    tiles.show_rows(estimate_figures.tiles(estimate), IN_ROW)
    if bar := memory_bar.html(estimate, charts.theme()):
        st.html(bar)
    if estimate.ttft_ms is not None:
        for sentence in load_words.limit_sentences(estimate, address.current()):
            st.caption(message(sentence))
    elif target_kind(estimate.target) == "local" and estimate.unserved is None:
        _measure_button(opened)
    _calibration(estimate)
    if estimate.max_context is not None and load.input_tokens + load.output_tokens > estimate.max_context:
        st.warning(
            f"A request of this load is longer than the {estimate.max_context:,} tokens that fit.",
            icon=":material/warning:",
        )
    # 3. Every figure, and the price.
    with st.expander("All figures", icon=":material/table_rows:"):
        if estimate.ttft_ms is not None:
            st.markdown(_table("At this load", estimate_figures.speed_rows(estimate)))
        st.markdown(_table("While serving", estimate_figures.memory_rows(estimate)))
        there = f" on {plain(where)}" if target_kind(estimate.target) in {"instance", "accelerator"} else ""
        st.markdown(_table(f"To make it{there}", estimate_figures.job_rows(estimate)))
    st.caption(f"Price: {plain(estimate_figures.price_text(estimate))}.")
    # 4. What is unknown, and the formulas. The plan's note says already why nothing serves it.
    for reason in estimate.unknown:
        if estimate.unserved is not None and estimate.unserved in reason:
            continue
        st.caption(f":material/help: Unknown: {message(reason)}.")
    _formulas(estimate)


def _basis(estimate: Estimate) -> str:
    if estimate.calibration is not None:
        return f"Corrected by a measurement. {estimate.basis}"
    if estimate.mapped is not None:
        return (
            f"The cost of speculation was measured here on {estimate.mapped[:10]} (payoff map); the rest is not"
            " measured."
        )
    return f"Not measured. {estimate.basis}"


def show_needs(need: JobNeeds) -> None:
    """Show what the job needs where the recipe is not valid."""
    rows = [
        ("Weights after", size(need.weights_bytes)),
        ("Disk", size(need.disk_bytes)),
        ("Memory", size(need.memory_bytes)),
    ]
    st.markdown(_table("To make it", rows))
    with st.expander("Formulas and sources"):
        for name, formula in need.formulas.items():
            st.markdown(f"- **{name}**: {plain(formula)}")


def _table(title: str, rows: list[Figure]) -> str:
    lines = [f"| {plain(label)} | {plain(value)} |" for label, value in rows]
    return "\n".join([f"| {title} | estimated |", "|:--|:--|", *lines])


def _calibration(estimate: Estimate) -> None:
    """Show the evaluation that corrected the estimate, and the error at each measured level."""
    # Not every estimate was corrected by a measurement.
    calibration = estimate.calibration
    if calibration is None:
        return
    # Say which measurement corrected it.
    when = document_time(calibration.measured_at)
    st.markdown(
        f":material/straighten: Calibrated by a measurement of {when}{calibration.subject} on this machine, "
        f"at {streams(calibration.concurrency)}."
    )
    if note := load_words.nearest_level(calibration.concurrency, estimate.load):
        st.caption(message(note))
    if calibration.evaluation:
        navigation.link(
            "evaluate", f"Evaluation {calibration.evaluation}", ":material/open_in_full:", id=calibration.evaluation
        )
    # List the error before and after at each measured level.
    with st.expander("Error before and after the correction"):
        st.markdown("\n".join(f"- {plain(line)}" for line in estimate_figures.calibration_lines(calibration)))


def _measure_button(opened: Workspace) -> None:
    """Draw the button that measures this machine; it takes some seconds and all cores."""
    # Say what is missing, and offer to measure it.
    st.caption("Speed is unknown until the memory and arithmetic of this machine are measured once.")
    clicked = st.button(
        "Measure this machine",
        key="build_measure-here",
        icon=":material/speed:",
        **{
            "help": "Takes some seconds. Then speed and job duration are estimated.",
            **disabled_unless_allowed(opened, Action.MEASURE),
        },
    )
    # Measure at once, since it takes seconds; then draw the page again with the speed.
    if clicked:
        with shell.errors_inline():
            with st.spinner("Measuring memory and matrix products"):
                machine.measure(opened)
            st.rerun()


def _formulas(estimate: Estimate) -> None:
    with st.expander("Formulas and sources"):
        for name, formula in estimate.formulas.items():
            st.markdown(f"- **{plain(name.replace('_', ' '))}**: {plain(formula)}")
        st.caption(plain(SOURCES))


SOURCES = (
    "Roofline: Williams et al. 2009; transformer inference: Pope et al. 2022; speculation: Leviathan et al. 2023;"
    " tensor parallelism: Shoeybi et al. 2019. Rates are nominal peaks from datasheets, on this machine measured "
    "ones; assumptions are in docs/decisions/0010-planner.md."
)


def show_cheapest(choice: TargetChoice) -> None:
    """Show the instance with the lowest price per million output tokens, for a target without a price."""
    best = choice.winner
    if best is None or best.price_per_million_output is None:
        return
    price, place = range_text(best.price_per_million_output, "USD"), load_words.instances(best.target, best)
    words = f"On instances, the lowest price per token: **{price} per million output tokens**, {plain(place)}."
    st.markdown(f":material/payments: {words}")
    st.caption(f"Estimated at {best.load_text}; {plain(estimate_figures.price_text(best))}.")


def show_choice(choice: TargetChoice) -> None:
    """Show the instance that `auto` chose, and why not the others."""
    # The winner, or that there is none.
    mark = ":material/star:" if choice.winner else ":material/block:"
    st.markdown(f"{mark} **{plain(estimate_figures.choice_sentence(choice))}**")
    # Where the job itself costs least.
    if choice.job is not None:
        took = f"{duration_range(*choice.job.seconds)}, {range_text(choice.job.cost, 'USD')}"
        st.caption(f"The optimize job itself would cost least on {plain(choice.job.target)}: {plain(took)}, estimated.")
    # The others with their reasons.
    fits = sum(loser.fits for loser in choice.losers)
    with st.expander(
        f"The others: {fits} could do it, {len(choice.losers) - fits} could not", expanded=choice.winner is None
    ):
        st.dataframe(
            estimate_figures.loser_rows(choice.losers),
            hide_index=True,
            height=260,
            alt="Instances that lost, with price and reason",
        )
