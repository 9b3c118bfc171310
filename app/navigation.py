"""Which pages there are, in which section, and how one leads to another. A page whose file is missing is not
offered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import streamlit as st

HERE = "shell_page"
"""Which page of the session is open, in its state."""
PAGES = Path(__file__).resolve().parent.parent / "pages"


class Entry(NamedTuple):
    """`hidden` pages are opened from others and have no place in the menu."""

    name: str
    title: str
    icon: str
    hidden: bool = False


SECTIONS: dict[str, tuple[Entry, ...]] = {
    "": (Entry("home", "Home", ":material/home:"),),
    "Models": (
        Entry("catalog", "Catalog", ":material/menu_book:"),
        Entry("import", "Import", ":material/folder_open:"),
        Entry("model", "Model", ":material/deployed_code:", hidden=True),
    ),
    "Optimize": (
        Entry("build", "Build", ":material/construction:"),
        Entry("train", "Train a draft", ":material/model_training:"),
        Entry("jobs", "Jobs", ":material/list:"),
        Entry("job", "Job", ":material/work:", hidden=True),
    ),
    "Measure": (
        Entry("evaluate", "Evaluate", ":material/speed:"),
        Entry("compare", "Compare", ":material/compare_arrows:"),
        Entry("playground", "Playground", ":material/chat:"),
    ),
    "Ship": (
        Entry("presets", "Presets", ":material/bookmarks:"),
        Entry("endpoints", "Endpoints", ":material/cloud:"),
    ),
    "System": (
        Entry("activity", "Activity", ":material/history:"),
        Entry("hardware", "Hardware", ":material/memory:"),
    ),
}


def page_key(name: str) -> str:
    """The key of a widget or a value that several pages have, named by the page that is open: what stands in it stays
    there."""
    return f"{st.session_state[HERE]}_{name}"


def page_file(name: str) -> Path:
    return PAGES / f"{name}.py"


def has_page(name: str) -> bool:
    return page_file(name).is_file()


def existing_sections() -> dict[str, list[Entry]]:
    """The sections with the pages that are on disk; empty sections left out."""
    sections = {section: [entry for entry in entries if has_page(entry.name)] for section, entries in SECTIONS.items()}
    return {section: entries for section, entries in sections.items() if entries}


def draw_menu() -> Any:
    """Draw the menu and answer with the page that the URL means."""
    page = st.navigation(
        {section: [_page(entry) for entry in entries] for section, entries in existing_sections().items()}
    )
    st.session_state[HERE] = page.url_path or "home"
    return page


def _page(entry: Entry) -> Any:
    visibility = "hidden" if entry.hidden else "visible"
    default = entry.name == "home"
    return st.Page(page_file(entry.name), title=entry.title, icon=entry.icon, default=default, visibility=visibility)


def join_values(*values: str) -> str:
    """Values as one parameter, between commas; a comma of a value's own (a folder's name may have one) is written
    %2C."""
    return ",".join(value.replace("%", "%25").replace(",", "%2C") for value in values)


def split_values(words: str) -> list[str]:
    """What `several` wrote, and what a person wrote between commas; each without the spaces around it, empty ones left
    out."""
    values = [part.replace("%2C", ",").replace("%2c", ",").replace("%25", "%").strip() for part in words.split(",")]
    return [part for part in values if part]


def distinct_values(values: Iterable[str]) -> list[str]:
    """What all values of a parameter that stands there once or several times name: each once, in order."""
    return list(dict.fromkeys(part for value in values for part in split_values(value)))


def set_parameter(name: str, values: Sequence[str]) -> None:
    """Write them into the address of the page as one parameter; where there are none, it has none."""
    if values:
        st.query_params[name] = join_values(*values)
    else:
        st.query_params.pop(name, None)


def multiselect(
    label: str,
    options: Iterable[str],
    chosen: Sequence[str],
    *,
    name: str,
    key: str,
    forgets: str = "",
    **widget_options: Any,
) -> list[str]:
    """A field whose choice is the parameter `name` of the address: at first `chosen`, which was read there. A change
    takes the parameter that it `forgets` out."""

    def write() -> None:
        set_parameter(name, st.session_state[key])
        st.query_params.pop(forgets, None)

    if st.session_state.get(key) != chosen:  # the address was changed by a link or by Back
        st.session_state[key] = chosen
    return list(st.multiselect(label, list(dict.fromkeys(options)), key=key, on_change=write, **widget_options))


def paginate(total: int, per_page: int, key: str = "page") -> tuple[int, int]:
    """The page of a list that is open, chosen where there are several, and the number of its first row."""
    pages = ceil(total / per_page)
    number = st.pagination(pages, key=page_key(key), bind="query-params") if pages > 1 else 1
    return number, (number - 1) * per_page


def reset_page() -> None:
    """What is narrowed otherwise begins at its first page."""
    st.session_state[page_key("page")] = 1


NARROWS: dict[str, Any] = {"bind": "query-params", "on_change": reset_page}
"""Of a field by which a list is narrowed or ordered; its value stands in the address."""


def link(name: str, label: str, icon: str | None = None, **params: str) -> None:
    """A link to a page with its place in the URL; nothing where this installation has no such page."""
    if not has_page(name):
        return
    if st.session_state.get(HERE) == name:
        _link_within_page(label, icon, params)
    else:
        st.page_link(str(page_file(name)), label=label, icon=icon, query_params=params or None)


def _link_within_page(label: str, icon: str | None, params: dict[str, str]) -> None:
    """A step within the page one is on. Streamlit's link would leave the browser's address as it was (1.67), and the
    next field that is typed in, or a refresh, would bring back what was shown before."""
    if st.button(label, icon=icon, type="tertiary", key=page_key(f"here-{label}-{join_values(*params.values())}")):
        st.query_params.from_dict(params)
        st.rerun()


def go(name: str, **params: str) -> None:
    """Open a page now, which ends the run of this one; said where this installation has no such page."""
    if not has_page(name):
        st.toast(f"This installation has no page pages/{name}.py.", icon=":material/error:")
        return
    if st.session_state.get(HERE) == name:
        st.query_params.from_dict(params)
        st.rerun()
    st.switch_page(str(page_file(name)), query_params=params or None)
