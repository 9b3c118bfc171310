"""A search on its page: the winner so far, what is spent, the chart, the ranking with reasons, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app import charts, navigation, next_steps, shell, url_parameters
from app.formatting import duration_range, plain, size, strong
from app.jobs.job_text import progress_text
from app.overview import tiles
from app.session import disabled_unless_allowed
from app.tuning.form import limit_texts
from backend.domain.figures import counted, figure, listed, streams
from backend.domain.roles import Action
from backend.domain.tuning.ranking import Ranked
from backend.domain.tuning.request import TuneRequest
from backend.present import tune_command
from backend.present.charts.tuning import latency_and_throughput
from backend.present.words.headline import Tile
from backend.service import Workspace
from backend.service.tuning import tunings
from backend.service.tuning.tunings import SearchView

HEIGHT = 340


def show(opened: Workspace, search_id: str) -> None:
    """Draw the search, again every two seconds while it runs. Raises NotFound."""
    view = tunings.show(opened, search_id)
    navigation.name_tab(f"{view.title}, {view.state}")
    head = st.container(horizontal=True, vertical_alignment="bottom")
    head.title("Tune", width="stretch")
    with head.container(width="content", horizontal=True):
        _draw_actions(opened, view)
    shell.live(
        f"search-{search_id}",
        lambda: _panel(opened, search_id),
        active=view.state == "running",
        drawn=_progress_mark(view),
    )
    if view.state != "running" and view.winner is not None:
        next_steps.show(
            opened, [view.sources[view.winner.trial.key]], baseline=view.sources.get(view.baseline), evaluates=False
        )
    _draw_steps(view)


def _draw_actions(opened: Workspace, view: SearchView) -> None:
    """Draw Stop while it runs, Resume after a stop, and the way to a new search."""
    if view.state == "running":
        allowed = disabled_unless_allowed(opened, Action.CANCEL, view.owner)
        if st.button("Stop", icon=":material/stop_circle:", key="tune_stop", **allowed):
            with shell.errors_inline():
                tunings.stop(opened, view.id)
                st.rerun()
        return
    if view.state == "stopped" and st.button(
        "Resume", icon=":material/resume:", key="tune_resume", type="primary", **disabled_unless_allowed(opened)
    ):
        with shell.errors_inline():
            tunings.resume(opened, view.id)
            st.rerun()
    if st.button("New search", icon=":material/add:", key="tune_new"):
        url_parameters.query().replace({"new": "true"})
        st.rerun()


def _panel(opened: Workspace, search_id: str) -> str:
    """Draw what changes while it runs; return the state."""
    view = tunings.advance(opened, search_id)
    st.caption(plain(request_words(view.request, view.title)))
    st.markdown(strong(_sentence(view)))
    # 1. What is spent, and what runs now.
    share = min(1.0, view.spent_s / (60 * view.request.budget_min))
    st.progress(share, text=plain(_progress_words(view)))
    tiles.show_rows(list(search_tiles(view)), 4)
    # 2. Chart and ranking.
    if view.ranked or view.state == "running":
        chart = latency_and_throughput(view.ranked, view.request.streams, view.baseline, charts.theme())
        charts.show(charts.with_height(chart, HEIGHT), f"search-{search_id}")
    if view.ranked:
        st.dataframe(
            ranking_rows(view),
            hide_index=True,
            column_config={"Stack": st.column_config.TextColumn(width="medium", pinned=True)},
            alt="Every measured stack, the best first, with the reason for each that lost",
        )
        st.markdown("**Against others**")
        st.dataframe(
            rival_rows(view), hide_index=True, alt="What the winner is held against, with win, same or loss for each"
        )
    return _progress_mark(view)


def _progress_mark(view: SearchView) -> str:
    """Return what changes with the state, each step and each measured stack."""
    return f"{view.state} {len(view.steps)} {len(view.ranked)}"


def request_words(request: TuneRequest, title: str) -> str:
    """Return `The lowest price per token for m at 1 and 4 streams, within TTFT p95 up to 300 ms.`"""
    loads = listed([f"{load:,}" for load in request.streams])
    words = f"{title[0].upper()}{title[1:]} at {loads} streams"
    limits = limit_texts(request.limits, request.max_kl)
    return f"{words}, within {listed(limits)}." if limits else f"{words}, without limits."


def _sentence(view: SearchView) -> str:
    """Return who leads or won, in one line."""
    winner = view.winner
    original = next((one for one in view.ranked if one.trial.key == view.baseline), None)
    if winner is not None:
        gain = ""
        if original is not None and original.score and winner.score and winner.trial.key != view.baseline:
            gain = f", {winner.score / original.score:.2f}x the original"
        verb = "leads so far" if view.state == "running" else "wins"
        return f"`{winner.trial.name}` {verb}{gain}: {winner.words}."
    nearest = next((one for one in view.ranked if one.standing == "nearest"), None)
    if nearest is not None:
        so_far = " yet" if view.state == "running" else ""
        return f"No stack meets all limits{so_far}. `{nearest.trial.name}` is {nearest.words}."
    return "Nothing has been measured yet." if view.state == "running" else "Nothing was measured."


def _progress_words(view: SearchView) -> str:
    spent = f"{duration_range(view.spent_s, view.spent_s)} of {view.request.budget_min:g} min"
    if view.job is None:
        return f"{spent}. {view.ended or ('Stopped.' if view.state == 'stopped' else 'Choosing the next step.')}"
    return f"{spent}. {view.steps[-1]} ({progress_text(view.job)})"


def search_tiles(view: SearchView) -> Sequence[Tile]:
    """Return the tiles of the winner, or of the nearest stack; none before anything was measured."""
    head = view.ranked[0] if view.ranked and view.ranked[0].score is not None else None
    if head is None:
        return ()
    low, high = head.trial.at(min(view.request.streams)), head.trial.at(max(view.request.streams))
    cells = [
        ("Tokens/s", high.tokens_per_s if high else None, f"at {streams(max(view.request.streams))}", figure),
        ("Latency", low.latency_ms if low else None, f"ms, median at {streams(min(view.request.streams))}", figure),
        ("KL divergence", head.trial.kl, "nats per token, from the original", figure),
        ("Ready in", head.trial.ready_s, "s", figure),
    ]
    return [Tile(label, words(value), detail) for label, value, detail, words in cells if value is not None]


def ranking_rows(view: SearchView) -> list[dict[str, object]]:
    """Return a row for each measured stack, the best first."""
    return [_row(one, view) for one in view.ranked]


def _row(one: Ranked, view: SearchView) -> dict[str, object]:
    row: dict[str, object] = {"Stack": one.trial.name, "Standing": one.standing, "Why": one.words}
    for load in view.request.streams:
        level = one.trial.at(load)
        row[f"Tokens/s at {streams(load)}"] = None if level is None else round(level.tokens_per_s, 1)
    level = one.trial.at(max(view.request.streams))
    percentile = view.request.limits.percentile
    row[f"TTFT {percentile} (ms)"] = None if level is None or level.ttft_ms is None else round(level.ttft_ms)
    row[f"TPOT {percentile} (ms)"] = None if level is None or level.tpot_ms is None else round(level.tpot_ms, 1)
    row["KL"] = None if one.trial.kl is None else float(f"{one.trial.kl:.3g}")
    row["Evaluation"] = one.trial.evaluation
    return row


def rival_rows(view: SearchView) -> list[dict[str, str]]:
    """Return a row for each stack that the winner is held against."""
    return [
        {"Against": one.title, "Stack": one.name or "-", "Winner's outcome": one.outcome, "Why": one.words}
        for one in view.rivals
    ]


def _draw_steps(view: SearchView) -> None:
    """Draw what was done step by step, what was not tried, and the command."""
    with st.expander(counted(len(view.steps), "step"), icon=":material/list:"):
        for line, job in zip(view.steps, view.job_ids, strict=True):
            if job is None:
                st.caption(plain(f"{line}: it could not be queued"))
            else:
                navigation.link("job", line, ":material/work:", id=job)
    if view.untried:
        with st.expander(f"{counted(len(view.untried), 'stack')} not measured", icon=":material/block:"):
            rows = [{"Stack": name, "Why": words} for name, words in view.untried.items()]
            st.dataframe(rows, hide_index=True, alt="Stacks that were not measured, with the reason")
    with st.expander("The same as a command", icon=":material/terminal:"):
        st.code(tune_command.command(view.request), language="bash", wrap_lines=True)
        st.caption(f"At most {size(view.request.disk_gb * 1e9)} of disk for the weights that it makes.")
