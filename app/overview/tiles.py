"""Draw figures as a row of tiles of equal size: a label, a large figure, a coloured word and what it rests on."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app.formatting import plain
from backend.present.variant_tiles import tile_look
from backend.present.words.headline import Tile


def show_rows(tiles: Sequence[Tile], room: int) -> None:
    """Draw the tiles in rows of `room`."""
    for first in range(0, len(tiles), room):
        show(tiles[first : first + room], room=room)


def show(tiles: Sequence[Tile], *, room: int | None = None) -> None:
    """Draw the tiles beside each other, of equal width and height; nothing without tiles. `room`: the tiles that a row
    has room for, where it is not filled."""
    for column, tile in zip(st.columns(room or len(tiles)) if tiles else (), tiles, strict=False):
        colour, arrow = tile_look(tile)
        with column.container(border=True, height="stretch", gap=None):
            st.metric(
                plain(tile.label),
                plain(tile.value),
                plain(tile.word) or None,
                colour,
                delta_arrow=arrow,
                delta_description=plain(tile.detail) if tile.word and tile.detail else None,
                help=plain(tile.about) or None,
            )
            if tile.detail and not tile.word:
                st.caption(plain(tile.detail))
