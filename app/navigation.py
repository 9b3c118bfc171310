"""The pages, their sections, and links between them. A page whose file is missing is not offered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import streamlit as st

from app import url_parameters
from app.load_bar import address

STUDIO = "Whetstone"
HERE = "shell_page"
"""Session key: the page that is open."""
PAGES = Path(__file__).resolve().parent.parent / "pages"


class PageEntry(NamedTuple):
    """A page. A hidden one is opened from others and is not in the menu."""

    name: str
    title: str
    icon: str
    hidden: bool = False


SECTIONS: dict[str, tuple[PageEntry, ...]] = {
    "": (PageEntry("home", "Home", ":material/home:"),),
    "Models": (
        PageEntry("catalog", "Catalog", ":material/menu_book:"),
        PageEntry("presets", "Presets", ":material/bookmarks:"),
        PageEntry("import", "Import", ":material/folder_open:", hidden=True),
        PageEntry("model", "Model", ":material/deployed_code:", hidden=True),
    ),
    "Optimize": (
        PageEntry("build", "Build", ":material/construction:"),
        PageEntry("tune", "Tune", ":material/tune:"),
        PageEntry("jobs", "Jobs", ":material/list:"),
        PageEntry("train", "Train a draft", ":material/model_training:", hidden=True),
        PageEntry("job", "Job", ":material/work:", hidden=True),
        PageEntry("activity", "Audit log", ":material/history:", hidden=True),
    ),
    "Measure": (
        PageEntry("evaluate", "Evaluate", ":material/speed:"),
        PageEntry("compare", "Compare", ":material/compare_arrows:"),
    ),
    "Serve": (
        PageEntry("playground", "Playground", ":material/chat:"),
        PageEntry("endpoints", "Endpoints", ":material/cloud:"),
    ),
    "System": (PageEntry("hardware", "Hardware", ":material/memory:"),),
}


def page_key(name: str) -> str:
    """Return the key of a widget that several pages have, prefixed with the open page, so that each page has its own
    value."""
    return f"{st.session_state[HERE]}_{name}"


def page_file(name: str) -> Path:
    return PAGES / f"{name}.py"


def has_page(name: str) -> bool:
    return page_file(name).is_file()


def existing_sections() -> dict[str, list[PageEntry]]:
    """Return the sections with the pages that are on disk; empty sections are left out."""
    sections = {section: [entry for entry in entries if has_page(entry.name)] for section, entries in SECTIONS.items()}
    return {section: entries for section, entries in sections.items() if entries}


def draw_menu() -> Any:
    """Draw the menu and name the browser's tab. Return the page of the URL."""
    page = st.navigation(
        {section: [_page(entry) for entry in entries] for section, entries in existing_sections().items()},
        expanded=True,  # whatever else is in the sidebar
    )
    st.session_state[HERE] = page.url_path or "home"
    name_tab(page.title if page.url_path else "")
    return page


def name_tab(words: str) -> None:
    """Name the browser's tab after what the page shows; without words after the studio alone."""
    st.set_page_config(page_title=f"{words} · {STUDIO}" if words else STUDIO)


def _page(entry: PageEntry) -> Any:
    visibility = "hidden" if entry.hidden else "visible"
    default = entry.name == "home"
    return st.Page(page_file(entry.name), title=entry.title, icon=entry.icon, default=default, visibility=visibility)


def join_values(*values: str) -> str:
    """Return values as one parameter with commas; a comma within a value (as in a folder's name) is written %2C."""
    return ",".join(value.replace("%", "%25").replace(",", "%2C") for value in values)


def split_values(words: str) -> list[str]:
    """Return what `join_values` wrote or a person typed with commas, stripped, without empty ones."""
    values = [part.replace("%2C", ",").replace("%2c", ",").replace("%25", "%").strip() for part in words.split(",")]
    return [part for part in values if part]


def distinct_values(values: Iterable[str]) -> list[str]:
    """Return the values of a parameter that occurs once or several times, each once, in order."""
    return list(dict.fromkeys(part for value in values for part in split_values(value)))


def set_parameter(name: str, values: Sequence[str]) -> None:
    """Write values into the address as one parameter; without values it is removed."""
    if values:
        url_parameters.query()[name] = join_values(*values)
    else:
        url_parameters.query().pop(name, None)


def multiselect(
    label: str,
    options: Iterable[str],
    chosen: Sequence[str],
    *,
    name: str,
    key: str,
    forgets: str = "",
    resolve: Callable[[str], str] = str,
    **widget_options: Any,
) -> list[str]:
    """Draw a field whose selection is the parameter `name` of the address.

    `chosen` was read there. A change also removes the parameter `forgets`; `resolve` turns typed text into an option.
    """
    offered = list(dict.fromkeys(options))

    def write() -> None:
        typed = [value for value in st.session_state[key] if value not in offered]
        values = [resolve(value) if value in typed else value for value in st.session_state[key]]
        if typed:  # the field then shows the label in place of the typed text
            st.session_state[key] = list(dict.fromkeys(values))
        set_parameter(name, list(dict.fromkeys(values)))
        url_parameters.query().pop(forgets, None)

    if st.session_state.get(key) != chosen:  # the address was changed by a link or by Back
        st.session_state[key] = chosen
    return list(st.multiselect(label, offered, key=key, on_change=write, **widget_options))


def paginate(total: int, per_page: int, key: str = "page") -> tuple[int, int]:
    """Draw the page numbers if there are several. Return the page and the number of its first row."""
    pages = ceil(total / per_page)
    number = st.pagination(pages, key=page_key(key), bind="query-params") if pages > 1 else 1
    return number, (number - 1) * per_page


def reset_page() -> None:
    """Go to the first page of a list after its filter has changed."""
    st.session_state[page_key("page")] = 1


NARROWS: dict[str, Any] = {"bind": "query-params", "on_change": reset_page}
"""Options of a field that filters or orders a list; its value is in the address."""


def link(name: str, label: str, icon: str | None = None, **params: str) -> None:
    """Draw a link to a page with parameters; nothing if this installation has no such page."""
    if not has_page(name):
        return
    if st.session_state.get(HERE) == name:
        _link_within_page(label, icon, params)
    else:
        st.page_link(str(page_file(name)), label=label, icon=icon, query_params=_with_load(params) or None)


def _with_load(params: dict[str, str]) -> dict[str, str]:
    """Return parameters with those of the planned load, which every link carries on."""
    return {**address.parameters(), **params}


def _link_within_page(label: str, icon: str | None, params: dict[str, str]) -> None:
    """Draw a link within the open page.

    Streamlit's own link would leave the browser's address unchanged (1.67), and the next typed field or a refresh would
    bring back what was shown before.
    """
    if st.button(label, icon=icon, type="tertiary", key=page_key(f"here-{label}-{join_values(*params.values())}")):
        url_parameters.query().replace(_with_load(params))
        st.rerun()


def go(name: str, **params: str) -> None:
    """Open a page now, which ends this run; show a message if this installation has no such page."""
    if not has_page(name):
        st.toast(f"This installation has no page pages/{name}.py.", icon=":material/error:")
        return
    if st.session_state.get(HERE) == name:
        url_parameters.query().replace(_with_load(params))
        st.rerun()
    # A mapping, even an empty one: with None Streamlit 1.67 refuses to leave a page that has a field in its address.
    st.switch_page(str(page_file(name)), query_params=_with_load(params))
