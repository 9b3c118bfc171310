"""Forms of a key-value cache in few bits, scored at long context: which form loses how much, served or not.

    python -m benchmarks.kv_cache_forms MODEL_FOLDER [--contexts 512,2048,7500] [--texts 4] [--note "..."]

The model's own attention reads keys and values as such a cache would return them, and its next-token probabilities
are compared with those of a 16-bit cache, at every position of held-out text. Three forms of `bits` each:

- `token`: asymmetric groups of 32 numbers of a token, keys as they are cached (after the rotary embedding). Servers
  have forms of this kind (llama.cpp q8_0 and q4_0, OpenVINO u8 and u4).
- `channel`: KVQuant's (Hooper et al. 2024, arXiv 2401.18079, sections 3.1 and 3.2): keys before the rotary embedding,
  one range a channel, set by the calibration text; values a range a token. Its non-uniform levels (3.3) are not made.
- `channel, 1 % apart`: the same, where the outermost 1 % of numbers stay 16-bit and set no range (section 3.4).

No engine of this project serves the two latter. Writes benchmarks/results/kv_cache_forms.md and .json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch

from backend.catalog.text import held_out_text
from backend.cli.output import table
from backend.domain.machine.hardware_lines import hardware_line
from backend.evaluate.quality.scoring import window_tokens
from backend.hardware import probe

RESULTS = Path(__file__).parent / "results"
TEXT = "chat and prose"
BITS = (8, 4, 3, 2)
GROUP = 32
"""Numbers of a token that share a range in the form `token`."""
APART = 0.01
CALIBRATED = (8, 512)
"""Sequences and tokens of the calibration text that set the ranges of channels."""
ROWS = 512
"""Positions whose probabilities are compared at a time."""


class Form(NamedTuple):
    """One way to cache: `by` token or channel, and the share of numbers that stay 16-bit."""

    by: str
    bits: int
    apart: float = 0.0

    @property
    def words(self) -> str:
        return f"{self.by}, {self.apart:.0%} apart" if self.apart else self.by


class Range(NamedTuple):
    """Bounds of each channel [channels], of all numbers and without the outermost `APART`."""

    low: torch.Tensor
    high: torch.Tensor
    inner_low: torch.Tensor
    inner_high: torch.Tensor


def main() -> None:
    from transformers import AutoModelForCausalLM

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--contexts", default="512,2048,7500")
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--note", default="")
    arguments = parser.parse_args()
    # 1. The model, and the ranges of its keys' channels on the text that calibrates.
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.bfloat16).eval()
    count, length = CALIBRATED
    texts = held_out_text.calibration(None, arguments.model)
    ranges = key_ranges(model, window_tokens(arguments.model, texts, length, count))
    # 2. Each form at each context, beside the 16-bit cache.
    documents, rows = held_out_text.read(TEXT, arguments.model).documents, list[dict[str, Any]]()
    forms = [
        Form(by, bits, apart) for bits in BITS for by, apart in (("token", 0.0), ("channel", 0.0), ("channel", APART))
    ]
    for context in map(int, arguments.contexts.split(",")):
        windows = window_tokens(arguments.model, documents, context, arguments.texts)
        losses: dict[Form, list[float]] = {form: [] for form in forms}
        for tokens in windows:
            reference = log_probabilities(model, tokens)
            for form in forms:
                with cached_as(model, form, ranges):
                    losses[form].append(divergence(reference, log_probabilities(model, tokens)))
        for form in forms:
            row = {"form": form.words, "bits": form.bits, "context": context, "kl": fmean(losses[form])}
            rows.append(row | {"least": min(losses[form]), "most": max(losses[form]), "texts": len(windows)})
            print(rows[-1], flush=True)
    document = {
        "model": arguments.model.name,
        "at": datetime.now(UTC).isoformat(),
        "hardware": hardware_line(probe.probe()),
        "note": arguments.note,
        "rows": rows,
    }
    (RESULTS / "kv_cache_forms.json").write_text(json.dumps(document, indent=1) + "\n")
    (RESULTS / "kv_cache_forms.md").write_text(report(document))


def key_ranges(model: Any, windows: torch.Tensor) -> dict[str, Range]:
    """Return the range of each channel of the keys before the rotary embedding, by the name of what computes them."""
    keys_of: dict[str, list[torch.Tensor]] = {}
    hooks = [
        module.register_forward_hook(
            lambda _module, _inputs, keys, name=name: keys_of.setdefault(name, []).append(keys.flatten(0, -2).float())
        )
        for name, module in model.named_modules()
        if name.endswith("k_proj")
    ]
    with torch.inference_mode():
        for tokens in windows:
            model(tokens[None])
    for hook in hooks:
        hook.remove()
    ranges: dict[str, Range] = {}
    for name, parts in keys_of.items():
        keys = torch.cat(parts)
        inner = torch.quantile(keys, torch.tensor([APART / 2, 1 - APART / 2]), dim=0)
        ranges[name] = Range(keys.amin(0), keys.amax(0), inner[0], inner[1])
    return ranges


@contextmanager
def cached_as(model: Any, form: Form, ranges: dict[str, Range]) -> Iterator[None]:
    """Let attention read keys and values as a cache of that form returns them, until the block ends."""
    if form.by == "token":
        hooks = [
            module.register_forward_pre_hook(_lend(_TokenCache(form.bits)), with_kwargs=True)
            for name, module in model.named_modules()
            if name.endswith("self_attn")
        ]
    else:
        hooks = [
            module.register_forward_hook(lambda _module, _inputs, keys, name=name: by_channel(keys, ranges[name], form))
            for name, module in model.named_modules()
            if name in ranges
        ]
        hooks += [
            module.register_forward_hook(lambda _module, _inputs, values: by_token(values, form))
            for name, module in model.named_modules()
            if name.endswith("v_proj")
        ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _lend(cache: _TokenCache) -> Any:
    return lambda _module, inputs, named: (inputs, {**named, "past_key_values": cache})


class _TokenCache:
    """A cache, as attention calls it, that stores nothing: groups of a token are rounded."""

    def __init__(self, bits: int) -> None:
        self.bits = bits

    def update(self, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return self._rounded(keys), self._rounded(values)

    def _rounded(self, numbers: torch.Tensor) -> torch.Tensor:
        grouped = numbers.float().unflatten(-1, (-1, min(GROUP, numbers.shape[-1])))
        return rounded(grouped, grouped.amin(-1, True), grouped.amax(-1, True), self.bits).flatten(-2).to(numbers.dtype)


def by_channel(keys: torch.Tensor, bounds: Range, form: Form) -> torch.Tensor:
    """Round keys [..., channels] within the range of each channel; with `apart` what lies outside stays as it was."""
    low, high = (bounds.inner_low, bounds.inner_high) if form.apart else (bounds.low, bounds.high)
    numbers = keys.float()
    near = rounded(numbers, low, high, form.bits)
    if form.apart:
        near = near.where((numbers >= low) & (numbers <= high), numbers)
    return near.to(keys.dtype)


def by_token(values: torch.Tensor, form: Form) -> torch.Tensor:
    """Round values [..., channels] within the range of each token, its outermost numbers left out with `apart`."""
    numbers = values.float()
    shares = torch.tensor([form.apart / 2, 1 - form.apart / 2])
    low, high = torch.quantile(numbers, shares, dim=-1, keepdim=True)
    near = rounded(numbers, low, high, form.bits)
    return near.where((numbers >= low) & (numbers <= high), numbers).to(values.dtype)


def rounded(numbers: torch.Tensor, low: torch.Tensor, high: torch.Tensor, bits: int) -> torch.Tensor:
    """Round to the nearest of 2 ** bits points between `low` and `high`."""
    step = ((high - low) / (2**bits - 1)).clamp(min=1e-12)
    return (((numbers - low) / step).round().clamp(0, 2**bits - 1)) * step + low


def log_probabilities(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Return log p of the next token [positions, vocabulary], in bfloat16."""
    with torch.inference_mode():
        logits = model(tokens[None], use_cache=False).logits[0]
        return torch.cat([part.float().log_softmax(-1).bfloat16() for part in logits.split(ROWS)])


def divergence(reference: torch.Tensor, other: torch.Tensor) -> float:
    """Return the mean KL divergence over positions, nats a token."""
    total = 0.0
    for first, second in zip(reference.split(ROWS), other.split(ROWS), strict=True):
        expected = first.float()
        total += float((expected.exp() * (expected - second.float())).sum())
    return total / len(reference)


def report(document: dict[str, Any]) -> str:
    """The rows as Markdown."""
    cells = [
        [row["form"], str(row["bits"]), f"{row['context']:,}", f"{row['kl']:.4f}"]
        + [f"{row['least']:.4f} to {row['most']:.4f}", str(row["texts"])]
        for row in document["rows"]
    ]
    header = ["form", "bits", "context", "mean KL", "least and most of a text", "texts"]
    return "\n".join(
        [
            f"# Forms of a key-value cache, scored: {document['model']}",
            "",
            f"{document['at'][:10]}, {document['hardware']}. {document['note']}".strip(),
            f"`python -m benchmarks.kv_cache_forms`; every position of held-out {TEXT}; `token` is what engines have,",
            "`channel` is KVQuant's with uniform levels, which no engine here serves. Numbers kept apart are not "
            "counted in bits.",
            "",
            "```",
            table(header, cells),
            "```",
            "",
        ]
    )


if __name__ == "__main__":
    main()
