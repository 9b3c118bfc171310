"""What an artifact says of the precision of each group of linears, in rows and words. The rows are pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from app.words import plain
from backend.domain.wording import figure

UNIT = "nats a token"


def summary(bits: Mapping[str, Any]) -> str:
    """The average against what was asked for, and what the losses are."""
    asked = f", of at most {bits['target_bits']:g} asked for" if bits["target_bits"] else ""
    return (
        f"{bits['average_bits']:.2f} bits a weight on average over the quantized linears, scales and zero points counted{asked}. "
        "Each group is what servers fuse or what reads the same input. Its loss is the mean KL divergence from the original with "
        "only that group rounded, measured on the calibration text."
    )


def rows(bits: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One a group, in the order of the model."""
    return [
        {
            "Group": group["name"],
            "Linears": group["linears"],
            "Precision": group["words"],
            f"Loss as kept ({UNIT})": figure(group["losses"][group["precision"]]),
            "Why": why(group),
        }
        for group in bits["groups"]
    ]


def why(group: Mapping[str, Any]) -> str:
    """Against the step's own precision, which stands first among the losses but that of 16 bits."""
    losses = {name: loss for name, loss in group["losses"].items() if name != "16-bit"}
    cheapest, most = next(iter(losses.items()))
    if group["precision"] == cheapest:
        return f"Loses {figure(most)} as the method makes it; bits save more elsewhere."
    return f"Would lose {figure(most)} as {cheapest}, the method's own."


def attempts(bits: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One a try, where a quality floor was to hold."""
    return [
        {
            "Try": number,
            "Bits a weight": f"{attempt['average_bits']:.2f}",
            "Groups raised": len(attempt["raised"]),
            f"Mean KL ({UNIT})": figure(attempt["kl_mean"]),
            "Perplexity": f"{attempt['perplexity_increase']:+.2%}",
            "Outcome": f"Missed: {attempt['missed']}." if attempt["missed"] else "The floor holds: kept.",
        }
        for number, attempt in enumerate(bits["attempts"], 1)
    ]


def show(bits: Mapping[str, Any] | None) -> None:
    """Nothing where all linears were made alike."""
    if bits is None:
        return
    st.markdown("**Precision of each group of linears**")
    st.caption(plain(summary(bits)))
    st.dataframe(rows(bits), hide_index=True, alt="Groups of linears with precision, loss and why")
    if tried := attempts(bits):
        st.markdown("**What the quality floor took**")
        st.dataframe(tried, hide_index=True, alt="Tries with bits, quality and outcome")
