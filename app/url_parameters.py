"""The parameters of the page's address, and values in them: a recipe's YAML, packed if it is long, and the pair of the
playground."""

from __future__ import annotations

import base64
import time
import zlib
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import streamlit as st
from streamlit.errors import StreamlitAPIException
from streamlit.runtime.scriptrunner import get_script_run_ctx

from backend.domain.errors import InvalidRecipe
from backend.service.plans.recipe_files import MAX_BYTES

LONGEST = 6000
"""Characters; servers and browsers refuse much longer addresses."""
MARK = "z:"
"""Prefix of a packed recipe. No YAML of a recipe begins so: it would be a mapping without its first key."""


Address = dict[str, list[str]]
"""Every parameter of an address with its values."""
WRITTEN, READ_IN = "address_written", "address_read_in"
"""Session keys: the `Written` of the open page, and the mark of the run that has compared the browser's address with
it."""
BARE_LATE_S = 5.0
"""Seconds after a write within which an address without parameters is late. Later it is the menu's link."""


class Written(NamedTuple):
    """The address that a page has written last, and when (monotonic clock, seconds).

    `replaced`: the addresses before it that the browser may still have, since it has not yet sent the last one.
    """

    page: str
    address: Address
    replaced: tuple[Address, ...]
    at: float


SIDES = ("original", "optimized")
NOTHING = "nothing"


class Parameters(MutableMapping[str, str]):
    """`st.query_params`, of which every write is noted: a run may be ended by the next click just after it."""

    def __getitem__(self, name: str) -> str:
        return str(st.query_params[name])

    def __setitem__(self, name: str, value: str) -> None:
        st.query_params[name] = value
        _note_written()

    def __delitem__(self, name: str) -> None:
        del st.query_params[name]
        _note_written()

    def __iter__(self) -> Iterator[str]:
        return iter(st.query_params)

    def __len__(self) -> int:
        return len(st.query_params)

    def get_all(self, name: str) -> list[str]:
        """Return every value of a parameter that may be repeated."""
        return list(st.query_params.get_all(name))

    def replace(self, parameters: Mapping[str, str]) -> None:
        """Make these the only parameters."""
        st.query_params.from_dict(parameters)
        _note_written()


def query() -> Parameters:
    """Return the parameters of the address, corrected once a run if the browser's address is late.

    A field sends its value when it is left, which the next click does. That click may leave the browser before the
    address that the studio wrote for the field's value has reached it, and would then bring back the address, and with
    it the value, from before. An address that this page itself replaced is late, unless a person went back through the
    history.
    """
    context = get_script_run_ctx()
    written: Written | None = st.session_state.get(WRITTEN)
    # The mark of a run is an object that Streamlit makes anew for each.
    mark = context.cursors if context else None
    if mark is None or written is None or st.session_state.get(READ_IN) is mark:
        return Parameters()
    st.session_state[READ_IN] = mark
    address = _current_address()
    late = address in written.replaced and (bool(address) or time.monotonic() - written.at < BARE_LATE_S)
    if late and not context.is_history_navigation:
        _write_again(written.address)
    else:
        st.session_state[WRITTEN] = Written(written.page, address, (), time.monotonic())
    return Parameters()


def _write_again(address: Address) -> None:
    """Write the parameters that differ, but for those of fields, which the browser writes itself and Streamlit guards
    (1.67: a page whose field is in its address would fail here)."""
    current = _current_address()
    for name in current.keys() | address.keys():
        if current.get(name) == address.get(name):
            continue
        with suppress(StreamlitAPIException):
            if name in address:
                st.query_params[name] = address[name]
            else:
                del st.query_params[name]


def enter(page: str) -> None:
    """Correct the address as a page is drawn. That of another page than the last one is taken as it is."""
    written: Written | None = st.session_state.get(WRITTEN)
    if written is None or written.page != page:
        st.session_state[WRITTEN] = Written(page, _current_address(), (), time.monotonic())
    query()


def leave() -> None:
    """Note the address at the end of a run, with what fields bound to it have written."""
    _note_written()


def _note_written() -> None:
    """Store the address that the studio has written last, and add the one before it to those that are replaced."""
    before: Written | None = st.session_state.get(WRITTEN)
    if before is None:
        return
    address = _current_address()
    earlier = before.replaced if before.address == address else (*before.replaced, before.address)
    replaced = tuple(each for each in earlier if each != address)
    st.session_state[WRITTEN] = Written(before.page, address, replaced, time.monotonic())


def _current_address() -> Address:
    return {name: st.query_params.get_all(name) for name in st.query_params}


def playground_parameters(sources: Sequence[str]) -> dict[str, str]:
    """Return the parameters of the playground for one or two sources."""
    return dict(zip(SIDES, [*sources, NOTHING], strict=False))


def write_recipe(text: str) -> str | None:
    """Return the address value of this text; None if it is too long."""
    if len(text) <= LONGEST:
        return text
    packed = MARK + base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode()
    return packed if len(packed) <= LONGEST else None


def read_recipe(address: str) -> str:
    """Return the text of an address value. Raises InvalidRecipe if a packed one is damaged or unpacks to too much."""
    # Short text is not packed.
    if not address.startswith(MARK):
        return address
    try:
        # Unpack at most what a recipe may have.
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(base64.urlsafe_b64decode(address.removeprefix(MARK)), MAX_BYTES)
        if unpacker.unconsumed_tail:
            raise InvalidRecipe(
                f"The recipe in the address has more than {MAX_BYTES // 1000} kB: a recipe has a few lines."
            )
        if not unpacker.eof:
            raise ValueError("cut off")
        return content.decode()
    except (ValueError, zlib.error):
        raise InvalidRecipe("The recipe in the address is damaged: part of the link is missing.") from None
