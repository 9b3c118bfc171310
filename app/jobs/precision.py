"""Show the precision of each group of linears of an artifact. The rows are pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from app.formatting import cell, plain
from backend.domain.figures import figure

UNIT = "nats per token"


def summary(bits: Mapping[str, Any]) -> str:
    """Return the average bits against the limit, and what the losses mean."""
    limit = f", of at most {bits['target_bits']:g} requested" if bits["target_bits"] else ""
    return (
        f"{bits['average_bits']:.2f} bits per weight on average over the quantized linears, scales and zero points"
        f" included{limit}. A group is what servers fuse or what reads the same input. Its loss is the mean KL "
        f"divergence in {UNIT} of the model with only that group rounded, measured on the calibration text. Of all"
        f" allocations within these bits, this one has the lowest sum of losses.{_predicted(bits)}"
    )


def _predicted(bits: Mapping[str, Any]) -> str:
    """Return the predicted sum beside the measured loss, if both are known."""
    predicted, measured = bits.get("predicted_kl"), bits.get("measured_kl")
    if not predicted or measured is None:
        return ""
    return (
        f" The predicted sum is {figure(predicted)}; the measured loss on held-out text is {figure(measured)}, "
        f"{measured / predicted:.1f} times that: errors of groups add up in ways that a sum leaves out, and the "
        "text is another one."
    )


def rows(bits: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row per group, in the order of the model."""
    return [
        {
            "Group": group["name"],
            "Linears": group["linears"],
            "Precision": group["words"],
            "Loss": figure(group["losses"][group["precision"]]),
            "As the method makes it": _own_precision(group, bits["own"]),
        }
        for group in bits["groups"]
    ]


def _own_precision(group: Mapping[str, Any], name: str) -> str:
    return "unchanged" if group["precision"] == name else f"{figure(group['losses'][name])} at {name}"


def attempt_rows(bits: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row per try to meet a quality floor."""
    return [
        {
            "Try": number,
            "Bits per weight": f"{attempt['average_bits']:.2f}",
            "Groups raised": len(attempt["raised"]),
            f"Mean KL ({UNIT})": figure(attempt["kl_mean"]),
            "Perplexity": f"{attempt['perplexity_increase']:+.2%}",
            "Outcome": f"Missed: {cell(attempt['missed'])}." if attempt["missed"] else "The floor is met.",
        }
        for number, attempt in enumerate(bits["attempts"], 1)
    ]


def show(bits: Mapping[str, Any] | None) -> None:
    """Draw the table; nothing if all linears have the same precision."""
    if bits is None:
        return
    st.markdown("**Precision of each group of linears**")
    st.caption(plain(summary(bits)))
    st.dataframe(rows(bits), hide_index=True, alt="Groups of linears with precision, loss and why")
    if attempts := attempt_rows(bits):
        st.markdown("**Tries to meet the quality floor**")
        st.dataframe(attempts, hide_index=True, alt="Tries with bits, quality and outcome")
