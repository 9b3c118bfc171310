"""The bar in the sidebar that sets the load once for all pages: a line that says it, and a popover that edits it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import streamlit as st

from app import navigation, url_parameters
from app.field_labels import error_sentence
from app.formatting import message, plain
from app.load_bar import address
from app.workloads import upload
from backend.domain.errors import WhetstoneError
from backend.domain.limits.latency_limit import PERCENTILES
from backend.domain.machine import price_list
from backend.domain.machine.device import Instance
from backend.domain.planner.planned_load import (
    HIGHEST_LIMIT_MS,
    LEAST_RATE,
    MOST_CONCURRENCY,
    MOST_DISCOUNT,
    MOST_KL,
    MOST_TOKENS,
    PROFILES,
    PlannedLoad,
)
from backend.domain.planner.roofline import MOST_RATE
from backend.present import load_words
from backend.service import Workspace
from backend.service.evaluations import workloads
from backend.service.machines import prices, targets
from backend.service.planned_load import workload_tokens
from backend.service.planned_load.workload_tokens import WorkloadTokens

HERE = "local"
USERS, RATE = "Users at once", "Requests per second"
DEMANDS = (USERS, RATE)
FILE = "file:"
"""Begins the choice of an uploaded workload, before its name."""
PROFILE_FIELD, DEMAND_FIELD, PERCENTILE_FIELD = "load_profile", "load_demand", "load_percentile"
REFUSED = "load_refused"
NUMBERS: dict[str, str] = {
    "load_input": "input_tokens",
    "load_output": "output_tokens",
    "load_concurrency": "concurrency",
    "load_rate": "rate",
    "load_ttft": "max_ttft_ms",
    "load_tpot": "max_tpot_ms",
    "load_max_kl": "max_kl",
}
"""Keys of number fields and what they hold."""
PLACE_FIELD, REGION_FIELD, DISCOUNT_FIELD = "load_place", "load_price_region", "load_percent"
WIDTH = 360
"""Pixels of the open bar: it does not change its width with what is in it."""
FIRST_RATE = 1.0
"""Requests per second when a rate is chosen."""
UNSET: dict[str, Any] = {"value": None, "placeholder": "none"}


def draw(opened: Workspace) -> None:
    """Draw the bar. A change is in the address at once, and the page below is drawn with it."""
    # 1. An instance or region that does not exist is as if none were chosen.
    known = targets.hardwares(opened).instances
    load, regions = address.current(), prices.list_regions(opened)
    if load.target not in {None, HERE, *known} or load.region not in {None, *regions}:
        target = load.target if load.target in {HERE, *known} else None
        region = load.region if load.region in regions else None
        load = load.model_copy(update={"target": target, "region": region})
        address.store(load)
    # 2. A link may name a workload without its tokens, or one that is not here.
    saved, missing = workloads.list_saved(opened), None
    if load.workload is not None and load.workload not in saved:
        missing, load = load.workload, load.model_copy(update={"workload": None})
    elif load.workload is not None and address.PROFILE not in url_parameters.query():
        _take_workload(opened, load.workload)
        load = address.current()
    # 3. The fields, then the line.
    _fill(load)
    with st.sidebar, st.container(key="load_bar"):
        popover = st.popover("Your load", icon=":material/tune:", width="stretch", key="load_popover")
        with popover.container(width=WIDTH):
            _draw_requests(opened, load, saved)
            _draw_limits(load)
            _draw_place(known, load)
            _draw_prices(regions, known.get(load.target or ""), opened.settings.discount)
        st.caption(plain(load_words.summary(load)))
        if missing is not None:
            st.caption(f":material/help: {message(load_words.missing_workload(missing))}")
        if refused := st.session_state.pop(REFUSED, None):
            st.error(message(refused), icon=":material/error:")


def _fill(load: PlannedLoad) -> None:
    """Give the fields the values of the load, which a link or Back may have changed."""
    values: dict[str, Any] = {key: getattr(load, name) for key, name in NUMBERS.items()}
    values[PROFILE_FIELD] = _profile_choice(load)
    values[DEMAND_FIELD] = USERS if load.rate is None else RATE
    values[PERCENTILE_FIELD] = load.percentile
    values[PLACE_FIELD], values[REGION_FIELD] = load.target, load.region
    values[DISCOUNT_FIELD] = _percent(load)
    for key, value in values.items():
        if key not in st.session_state or st.session_state[key] != value:
            st.session_state[key] = value


def _profile_choice(load: PlannedLoad) -> str | None:
    """Return the choice of the field "Workload" for this load; None for tokens of no profile."""
    return load.profile if load.workload is None else f"{FILE}{load.workload}"


def _percent(load: PlannedLoad) -> float | None:
    return None if load.discount is None else round(load.discount * 100, 4)


def _draw_requests(opened: Workspace, load: PlannedLoad, saved: Collection[str]) -> None:
    """Draw the workload, the tokens of a request and the concurrent requests. `saved`: uploaded workloads."""
    # 1. A profile, an upload, or tokens of one's own.
    names = [*PROFILES, *(f"{FILE}{name}" for name in saved)]
    st.selectbox(
        "Workload",
        names if _profile_choice(load) else [*names, None],
        key=PROFILE_FIELD,
        format_func=_title,
        on_change=_take_profile,
        args=(opened,),
        help="\n".join(f"- {known.title}: {known.about}" for known in PROFILES.values()),
    )
    # 2. Its tokens, and where they come from.
    left, right = st.columns(2)
    left.number_input("Tokens in", 1, MOST_TOKENS, key="load_input", on_change=_take)
    right.number_input("Tokens out", 1, MOST_TOKENS, key="load_output", on_change=_take)
    if load.workload is not None:
        _show_basis(opened, load)
    with st.expander("Upload a workload", icon=":material/upload:"):
        upload.draw(opened, "load_upload", partial(_take_upload, opened))
    # 3. The users, or a rate.
    st.segmented_control(
        "Requests",
        DEMANDS,
        key=DEMAND_FIELD,
        required=True,
        on_change=_take,
        help=(
            "Users at once: each sends the next request when the answer is complete, so 16 users are 16 streams. "
            "Requests per second: they come by the clock, and an estimate finds how many are in flight, on how many "
            "instances."
        ),
    )
    number: dict[str, Any] = {"on_change": _take, "label_visibility": "collapsed"}
    if load.rate is None:
        st.number_input(USERS, 1, MOST_CONCURRENCY, key="load_concurrency", **number)
    else:
        st.number_input(RATE, LEAST_RATE, MOST_RATE, key="load_rate", step=1.0, format="%g", **number)


def _title(choice: str | None) -> str:
    """Return the title of a profile, or the name of an uploaded workload."""
    if choice and choice.startswith(FILE):
        return choice.removeprefix(FILE)
    return load_words.profile_title(choice)


def _show_basis(opened: Workspace, load: PlannedLoad) -> None:
    """Show what the tokens of an uploaded workload are the mean of; nothing if the link has other tokens."""
    try:
        read = _read_tokens(opened, load.workload or "")
    except WhetstoneError as error:
        st.caption(message(error))
        return
    if read.input_tokens == load.input_tokens:
        answers = read.output_tokens is not None and read.output_tokens == load.output_tokens
        st.caption(message(load_words.workload_basis(read.counted, read.model, answers=answers)))


def _read_tokens(opened: Workspace, name: str) -> WorkloadTokens:
    """Return the tokens of a workload. Each file is read once: its name, size and time tell it."""
    file = workloads.list_saved(opened).get(name)
    status = file.stat() if file else None
    size, changed = (status.st_size, status.st_mtime_ns) if status else (0, 0)
    tokens: WorkloadTokens = _read_once(str(file), size, changed, name, opened)
    return tokens


@st.cache_data(show_spinner=False, max_entries=100)  # type: ignore[untyped-decorator]
def _read_once(file: str, size: int, changed: int, name: str, _opened: Workspace) -> WorkloadTokens:
    return workload_tokens.read_tokens(_opened, name)


def _draw_limits(load: PlannedLoad) -> None:
    """Draw the latency limits with their percentile, and the quality floor."""
    st.segmented_control(
        "Percentile of both latency limits",
        PERCENTILES,
        key=PERCENTILE_FIELD,
        required=True,
        on_change=_take,
        help=load_words.LIMITS_HELP,
    )
    left, right = st.columns(2)
    limit: dict[str, Any] = {"min_value": 0.0, "max_value": HIGHEST_LIMIT_MS, "format": "%g", "on_change": _take}
    left.number_input(f"TTFT {load.percentile}, at most (ms)", key="load_ttft", **UNSET, **limit)
    right.number_input(f"TPOT {load.percentile}, at most (ms)", key="load_tpot", **UNSET, **limit)
    st.number_input(
        "Quality floor: KL divergence, at most",
        0.0,
        MOST_KL,
        key="load_max_kl",
        format="%g",
        on_change=_take,
        help="Mean KL divergence from the original, in nats per token.",
        **UNSET,
    )


def _draw_place(known: Mapping[str, Instance], load: PlannedLoad) -> None:
    """Draw where it runs."""
    st.selectbox(
        "Runs on",
        [HERE, *known],
        key=PLACE_FIELD,
        index=None,
        format_func=lambda name: "This machine" if name == HERE else name,
        placeholder="Each page's own choice",
        on_change=_take,
    )


def _draw_prices(regions: Sequence[str], instance: Instance | None, discount: float) -> None:
    """Draw the region of prices if several are known, and the discount off published prices.

    `instance`: where it runs; `discount`: the one in force, as a share.
    """
    # 1. The region; others are fetched on Hardware.
    if len(regions) > 1:
        st.selectbox(
            "Prices of",
            regions,
            key=REGION_FIELD,
            index=None,
            placeholder="The last region that was fetched",
            on_change=_take,
            help="An instance without a price there has none. Other regions are fetched on the Hardware page.",
        )
    else:
        st.caption(plain(f"Prices: {regions[0] if regions else 'none'}, or the region named beside a price."))
        if st.session_state[navigation.HERE] != "hardware":
            navigation.link("hardware", "Fetch another region", ":material/sync:")
    # 2. The discount, and the price of the instance.
    st.number_input(
        "Discount (%)",
        0.0,
        MOST_DISCOUNT * 100,
        value=None,
        key=DISCOUNT_FIELD,
        format="%g",
        placeholder=f"{discount * 100:.4g}",
        on_change=_take,
        help="Off every published price per hour.",
    )
    if instance is not None:
        st.caption(plain(f"Price: {price_list.price_note(instance) or price_list.missing_note(instance)}."))


def _take_profile(opened: Workspace) -> None:
    """Take the tokens of the chosen profile or uploaded workload."""
    chosen = st.session_state.get(PROFILE_FIELD) or ""
    if chosen.startswith(FILE):
        _take_workload(opened, chosen.removeprefix(FILE))
        return
    known = PROFILES.get(chosen)
    if known:
        st.session_state["load_input"], st.session_state["load_output"] = known.input_tokens, known.output_tokens
    _take()


def _take_upload(opened: Workspace, name: str) -> None:
    """Take the tokens of what was just uploaded, and draw the page with it."""
    _take_workload(opened, name)
    st.rerun()


def _take_workload(opened: Workspace, name: str) -> None:
    """Make an uploaded workload that of the load, with its tokens; one that cannot be read leaves the load as it is."""
    load = address.current()
    try:
        read = _read_tokens(opened, name)
    except WhetstoneError as error:
        st.session_state[REFUSED] = error_sentence(error)
        address.store(load.model_copy(update={"workload": None}))
        return
    tokens = {"input_tokens": read.input_tokens, "output_tokens": read.output_tokens or load.output_tokens}
    address.store(load.model_copy(update={"workload": name, **tokens}))


def _take() -> None:
    """Make what the fields say the load of all pages. What is empty stays as it was.

    Streamlit at times reports a choice that nobody touched as empty, with every later run. The address then decides:
    written again, the load would undo a step back. A field that the session does not hold changes nothing: while one
    run of the page is being stopped and the next has begun, either may drop it.
    """
    # 1. The numbers, the place and the discount.
    before = address.current()
    field = st.session_state.get
    values: dict[str, Any] = {name: field(key, getattr(before, name)) for key, name in NUMBERS.items()}
    for name in ("input_tokens", "output_tokens", "concurrency"):
        values[name] = values[name] or getattr(before, name)
    by_rate = (field(DEMAND_FIELD) or (USERS if before.rate is None else RATE)) == RATE
    values["rate"] = values["rate"] or before.rate or FIRST_RATE if by_rate else None
    values["percentile"] = field(PERCENTILE_FIELD) or before.percentile
    values["target"], values["region"] = field(PLACE_FIELD, before.target), field(REGION_FIELD, before.region)
    percent = field(DISCOUNT_FIELD, _percent(before))
    values["discount"] = None if percent is None else percent / 100
    # 2. An uploaded workload, unless its prompts have another length now.
    chosen = field(PROFILE_FIELD) or ""
    if chosen.startswith(FILE) and values["input_tokens"] == before.input_tokens:
        values["workload"] = chosen.removeprefix(FILE)
    load = PlannedLoad.model_validate(values)
    if load != before:
        address.store(load)
