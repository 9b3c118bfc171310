"""The frame of every page: menu, banner, errors as one sentence, live parts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import streamlit as st

from app import navigation, url_parameters
from app.field_labels import error_sentence
from app.formatting import message
from app.load_bar import address
from app.overview import tiles
from app.session import disabled_unless_allowed, freeze_imports, show_account, show_banner, workspace
from app.sidebar import load_bar
from backend.domain.errors import NotNow, WhetstoneError
from backend.domain.roles import Action
from backend.present.words.headline import Tile
from backend.service import Workspace, unreadable_rows

LIVE_EVERY = "2s"
TILES_IN_ROW = 4
LOG = logging.getLogger("whetstone")
READABLE = """<style>
[data-testid='stBaseButton-primary'] kbd { opacity: 1 }
[data-testid='stSliderThumbValue'] { color: inherit }
[data-testid='stTextInput'] [data-testid='InputInstructions'] { transform: translateY(100%) }
[data-testid='stMainBlockContainer'] { padding-top: 3.75rem }
[data-testid='stSidebarContent'] { display: flex; flex-direction: column }
[data-testid='stSidebarUserContent'] { order: 1; padding-bottom: 1rem }
[data-testid='stSidebarNav'] { order: 2 }
[data-testid='stElementContainer']:has(> [data-testid='stHtml'] script) { display: none }
[data-testid='stToastContainer'] { top: auto !important; bottom: 8rem }
@media (max-width: 640px) {
    [data-testid='stColumn']:has(> [data-testid='stVerticalBlock'] > [data-testid='stLayoutWrapper']
    > [data-testid='stVerticalBlock'] > [data-testid='stElementContainer'] > [data-testid='stMetric'])
    { min-width: calc(50% - 1rem) }
    [data-testid='stMetric'] p { white-space: normal !important; overflow-wrap: anywhere }
    [data-testid='stMetricValue'] { font-size: 20px }
}
@media (hover: none) { [data-testid='stElementContainer']:has([data-testid='stDataFrame'])
    { margin-top: 1.5rem } }
@media (min-width: 800px) { [data-testid='stMainBlockContainer'] { padding-inline: 3rem } }
</style>"""
"""CSS: Streamlit pales the shortcut on a button and draws a slider's value in the accent colour, neither of which could
be read, writes "19/80" over the end of what is typed, puts the menu above everything else in the sidebar, leaves a
sixth of a laptop's screen free above the title and as much beside the page. It shows a toast over the buttons beside
the title, where it stays as long as the pointer does: it is moved to the bottom, above the field of a chat. On a phone
it gives each tile a row of its own with its words cut, and draws the buttons of a table, which are always there, over
the line above it."""


REACHED = """<script>(() => {
    if (window.whetstoneReached) return
    const look = box => {
        if (!box || (box.hasAttribute("tabindex") && !box.dataset.reached)) return
        const scrolls = box.scrollWidth > box.clientWidth
        if (scrolls === Boolean(box.dataset.reached)) return
        const own = {tabindex: "0", role: "region", "aria-label": "Table that scrolls sideways", "data-reached": "yes"}
        for (const [name, value] of Object.entries(own))
            scrolls ? box.setAttribute(name, value) : box.removeAttribute(name)
    }
    const of = "[data-testid=stTable] > div", seen = new WeakSet()
    const sizes = new ResizeObserver(entries => entries.forEach(entry => look(entry.target.closest(of))))
    const watch = () => document.querySelectorAll(`${of}, [data-testid=stTable] table`).forEach(each => {
        if (!seen.has(each)) sizes.observe(each)
        seen.add(each)
    })
    window.whetstoneReached = new MutationObserver(watch)
    window.whetstoneReached.observe(document.body, {childList: true, subtree: true})
    watch()
})()</script>"""
"""Make a table that is wider than its page scroll with the keyboard too (WCAG 2.1.1). Streamlit does so only if it has
a size in pixels."""


def run_page(draw_beside: Callable[[Workspace], None]) -> None:
    """Run the page of the URL inside the shell. `draw_beside` is drawn with every page."""
    page = navigation.draw_menu()
    here = st.session_state[navigation.HERE]
    url_parameters.enter(here)
    address.follow(here)
    # together: Streamlit puts HTML of styles alone where toasts are, and the next toast of a live part would replace it
    st.html(READABLE + REACHED, unsafe_allow_javascript=True)
    opened = workspace()
    try:
        with errors_on_page():
            load_bar.draw(opened)
            show_account(opened)
            show_banner(opened)
            draw_beside(opened)
            page.run()
    finally:  # a page may end by opening another, or by st.stop
        url_parameters.leave()
        freeze_imports()


@contextmanager
def errors_on_page() -> Iterator[None]:
    """Show an error of Whetstone as one sentence on the page, never as a traceback."""
    try:
        yield
    except WhetstoneError as error:
        LOG.warning("%s", error, extra={"event": "refused"})
        st.error(message(error), icon=":material/error:")


@contextmanager
def errors_inline() -> Iterator[None]:
    """Show a refusal at this place; the rest of the block is skipped."""
    try:
        yield
    except WhetstoneError as error:
        st.error(message(error), icon=":material/error:")


@contextmanager
def errors_in_toast(too_late: str | None = None) -> Iterator[None]:
    """Show a refusal as a toast; the rest of the block is skipped.

    That a job has changed its state since the page was drawn is news and no error: `too_late` says it, else the refusal
    itself.
    """
    try:
        yield
    except NotNow as refusal:
        st.toast(message(too_late or refusal), icon=":material/info:")
    except WhetstoneError as error:
        st.toast(message(error), icon=":material/error:")


@contextmanager
def errors_in_session(key: str) -> Iterator[None]:
    """Store a refusal in the session under `key` for the next run, which shows it."""
    try:
        yield
    except WhetstoneError as error:
        st.session_state[key] = error_sentence(error)


def show_session_error(key: str) -> None:
    """Show the message that `errors_in_session` stored under `key`, once, in a container that is always drawn, so that
    fields below keep what is being typed when it goes."""
    place = st.container()
    if refused := st.session_state.pop(key, None):
        place.error(message(refused), icon=":material/error:")


def refuse_page(reason: str, page: str, label: str, *, title: str | None = None, **params: str) -> None:
    """Show why there is nothing, link another page with its parameters, and end this one. `title`: if the page has none
    yet."""
    if title:
        st.title(title)
    st.error(reason, icon=":material/error:")
    navigation.link(page, label, ":material/arrow_back:", **params)
    st.stop()


def live(
    name: str, body: Callable[[], Hashable], *, active: bool, every: str = LIVE_EVERY, drawn: Hashable = None
) -> None:
    """Draw `body`, and while `active` again every two seconds; rerun the whole page when its return value changes.

    `drawn`: what `body` would have returned when the page around it was drawn, None where that does not matter. What
    changed since then is followed too.
    """
    last_state: list[Hashable] = [] if drawn is None else [drawn]

    interval, key = every if active else None, navigation.page_key(f"live-{name}")

    @st.fragment(run_every=interval, key=key)  # type: ignore[untyped-decorator]
    def panel() -> None:
        with errors_on_page():
            state = body()
            if last_state and last_state[0] != state:
                st.rerun()
            last_state[:] = [state]

    panel()


def show_figures(cells: Iterable[tuple[str, str, str | None]]) -> None:
    """Draw figures as tiles of equal size, as (label, value, detail), TILES_IN_ROW beside each other."""
    tiles.show_rows([Tile(label, value, more or "") for label, value, more in cells], TILES_IN_ROW)


def show_damaged(opened: Workspace, kind: unreadable_rows.DocumentKind, among: Sequence[str] | None = None) -> None:
    """Draw rows that cannot be read, all or those of these keys, each with its reason and a remove button."""
    for row in unreadable_rows.find_all(opened, [kind], among):
        with st.container(border=True, horizontal=True, vertical_alignment="center"):
            st.markdown(f":material/error: {message(f'{row.id}: {row.why}')}", width="stretch")
            if not row.newer:
                st.button(
                    "Remove",
                    icon=":material/delete:",
                    key=navigation.page_key(f"damaged_{row.id}"),
                    on_click=unreadable_rows.remove,
                    args=(opened, row),
                    **disabled_unless_allowed(opened, Action.REMOVE_DAMAGED),
                )
