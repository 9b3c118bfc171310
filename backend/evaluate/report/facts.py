"""Lists how an evaluation was measured as (name, value): workload, load, hardware, versions, variants. No HTML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from backend.domain.evaluation.document import EvaluateOptions, Evaluation, Remote, VariantResult
from backend.domain.figures import compression_ratio, counted, figure
from backend.domain.machine import price_list
from backend.present.words import repeat_counts, workload_reading
from backend.present.words.measurements import (
    INTERLEAVE,
    PREFIX_CACHE,
    answer_length,
    load_asked,
    memory_limit,
    readiness,
    requests_asked,
    scored,
)

Facts = list[tuple[str, str]]
_HASH = re.compile(r"^([0-9a-f]{16})[0-9a-f]{16,}$")
"""Matches a hash; its first digits identify it, and the JSON has all of it."""

NOT_OURS = "not known: it was not started here"
_ACRONYMS = {"cpu": "CPU", "gpu": "GPU", "cuda": "CUDA", "sha256": "SHA-256", "url": "URL", "os": "OS", "p50": "median"}


def facts(evaluation: Evaluation) -> dict[str, Facts]:
    """Heading -> facts, in the order shown."""
    return {
        "Workload": [
            *_plain(evaluation.workload.model_dump(exclude={"reading"})),
            *(("How it was read", sentence) for sentence in workload_reading.document_sentences(evaluation)),
        ],
        "Load": _load(evaluation),
        "Hardware": _plain(evaluation.hardware),
        "Versions": list(evaluation.versions.items()) or [("Recorded", "nothing")],
    }


def moment(stamp: str) -> str:
    """`2 January 2026, 03:04 UTC` from an ISO stamp; anything else as it is."""
    try:
        when = datetime.fromisoformat(stamp)
    except ValueError:
        return stamp
    zone = f" {when.tzname()}" if when.tzinfo else ""
    return f"{when.day} {when:%B %Y, %H:%M}{zone}"


def _load(evaluation: Evaluation) -> Facts:
    options = evaluation.options
    return [
        ("Measured", moment(evaluation.measured_at)),
        ("Order of variants", INTERLEAVE.get(evaluation.interleave, evaluation.interleave)),
        load_asked(options),
        ("Repeats of each level", repeat_counts.measured_repeats(evaluation)),
        ("Tests", repeat_counts.describe_tests(evaluation)),
        *([("Continues", evaluation.continues)] if evaluation.continues else []),
        (
            "Requests per repeat",
            f"{requests_asked(options)}; the workload has {counted(evaluation.workload.prompts, 'line')}",
        ),
        ("Warm-up requests per stream", str(options.warmup_requests))
        if not options.rate
        else ("Warm-up", f"{options.warmup_seconds:g} s"),
        ("Length of an answer", answer_length(options)),
        ("Prefix cache", PREFIX_CACHE[options.prefix_cache]),
        ("Temperature, seed", f"{options.temperature:g}, {options.seed}"),
        ("Price", _price(options)),
    ]


def _price(options: EvaluateOptions) -> str:
    if options.price_per_hour is None:
        return "none given"
    discount = f", less {options.discount:.0%}" if options.discount else ""
    return f"{options.price_per_hour:g} USD per hour{discount}; input to output tokens {options.input_output_ratio:g}:1"


def variant_facts(evaluation: Evaluation, result: VariantResult) -> dict[str, Any]:
    # Leave out what another's server does not tell us.
    variant = result.variant
    speculation = variant.speculation
    serving = {name: value for name, value in variant.serving.model_dump().items() if value is not None}
    # Recipe and settings of a server that we started.
    ours: Facts = [
        ("Recipe", variant.recipe_hash[:12] if variant.recipe_hash else "none: unchanged"),
        ("Serving", ", ".join(f"{name} {_value(value)}" for name, value in serving.items())),
        ("Speculation", f"{speculation.method}, {speculation.tokens} tokens" if speculation else "none"),
        ("Compile cache", "built ahead of time" if variant.compile_cache else "none"),
    ]
    # All facts in the order of the report.
    shown: Facts = [
        ("Source", f"{variant.source} ({variant.kind})"),
        ("Size on disk", _disk_size(evaluation, result)),
        *(_remote(variant.remote) if variant.remote else []),
        *([(name, NOT_OURS) for name, _ in ours] if variant.kind == "url" else ours),
        ("Ready after", readiness(result)),
        ("Time per token", memory_limit(evaluation, result)),
        ("Peak memory", _bytes(result.peak_rss_bytes)),
        ("KL and perplexity scored on", scored(result)),
    ]
    return {"name": result.name, "facts": shown}


def _disk_size(evaluation: Evaluation, result: VariantResult) -> str:
    """Return the size of the weights, with their compression ratio where they are not those of the baseline."""
    before, after = evaluation.variants[0].variant.bytes_on_disk, result.variant.bytes_on_disk
    ratio = compression_ratio(before, after)
    words = _bytes(after)
    return words if ratio is None or before == after else f"{words}, compression ratio {figure(ratio)}"


def _remote(remote: Remote) -> Facts:
    basis = f"on demand in {remote.price_region}{price_list.discount_text(remote.discount)}"
    price = "not known" if remote.usd_per_hour is None else f"{remote.usd_per_hour:g} USD per hour, {basis}"
    return [
        ("Endpoint at SageMaker", f"{remote.endpoint} in {remote.region}, {remote.instances}"),
        ("Its price", price),
        ("What was proven of it", " ".join(remote.findings) or "nothing"),
    ]


def _bytes(count: int | None) -> str:
    if count is None:
        return "not measured"
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 1e6:.1f} MB"


def _plain(values: Mapping[str, Any]) -> Facts:
    """Any mapping as names in words; nested ones are flattened."""
    facts_listed: Facts = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            facts_listed += [(f"{_words(name)}, {inner}", shown) for inner, shown in _plain(value)]
        else:
            facts_listed.append(
                (_words(name), _bytes(value) if name.endswith("_bytes") and isinstance(value, int) else _value(value))
            )
    return facts_listed or [("Recorded", "nothing")]


def _words(name: str) -> str:
    words = name.removesuffix("_bytes").split("_")
    spaced = " ".join(_ACRONYMS.get(word, word) for word in words)
    return spaced[:1].upper() + spaced[1:]


def _value(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "not recorded"}[value]
    if isinstance(value, list | tuple):
        return ", ".join(_value(entry) for entry in value) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_value(inner)}" for name, inner in value.items())
    if isinstance(value, int):
        return f"{value:,}"
    return figure(value, 6) if isinstance(value, float) else _HASH.sub(r"\1…", str(value))
