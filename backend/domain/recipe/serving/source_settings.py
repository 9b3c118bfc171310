"""Engine and serving settings behind a source, such as `@engine=NAME` and `@threads=2`. Pure.

`MODEL@engine=llama.cpp@kv_cache_dtype=q8_0` is the model on llama.cpp with a cache of 8 bits; so one evaluation
compares settings of one set of weights, and nothing is copied. `@tokens=N` of an artifact stays part of its source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from backend.domain.errors import RequestError
from backend.domain.recipe.recipe import Serving
from backend.domain.recipe.serving_engines import AUTO, ENGINE, ENGINES, EngineChoice
from backend.domain.similar_names import find_similar
from backend.domain.validation import first_flaw

SETTINGS = tuple(name for name in Serving.model_fields if name != "engine")
"""Settings that may be written behind a source."""
TITLES = {
    "max_model_len": "context",
    "max_num_seqs": "batch",
    "tensor_parallel": "devices",
    "kv_cache_dtype": "KV cache",
    "enforce_eager": "not compiled",
    "batch_threads": "prompt threads",
    "max_num_batched_tokens": "step tokens",
    "micro_batch_tokens": "pass tokens",
    "block_size": "cache block",
    "attention_backend": "attention",
    "performance_mode": "mode",
    "pipeline_parallel": "stages",
    "data_parallel": "copies",
    "cache_eviction_tokens": "cache limit",
}
"""Settings in a variant's name, where their own name is long."""
TRUTH_WORDS = {True: "on", False: "off"}
SUFFIX = re.compile(r"@(\w+)=([^@]*)\Z")
DRAFT_TOKENS = "tokens"
MOST_VALUE = 40


class SourceSettings(NamedTuple):
    """A source in its parts. `engine` is None and `settings` is empty where nothing was written."""

    plain: str
    engine: EngineChoice | None
    settings: dict[str, str]


def parse_source(source: str) -> SourceSettings:
    """Return the source without engine and settings, and these. Raises RequestError for an unknown name or one that is
    written twice."""
    plain, written = source, dict[str, str]()
    while (suffix := SUFFIX.search(plain)) is not None and suffix[1] != DRAFT_TOKENS:
        name, value = suffix[1], suffix[2]
        if name not in ("engine", *SETTINGS):
            nearest = find_similar(name, SETTINGS) or SETTINGS
            raise RequestError(f"There is no serving setting `{name[:MOST_VALUE]}`: use {' or '.join(nearest)}.")
        if name in written:
            raise RequestError(f"`@{name}=` is written twice behind {plain[: suffix.start()][:80]}: give it once.")
        written = {name: value, **written}
        plain = plain[: suffix.start()]
    return SourceSettings(plain, _read_engine(written.pop("engine", None)), written)


def _read_engine(name: str | None) -> EngineChoice | None:
    engines: tuple[EngineChoice, ...] = (*ENGINES, AUTO)
    for engine in engines:
        if engine == name:
            return engine
    if name is None:
        return None
    raise RequestError(f"There is no serving engine `{name[:40]}`: use {' or '.join(engines)}.")


def remove_settings(source: str) -> str:
    """Return the source without engine and settings, also where these are none that exist."""
    while (suffix := SUFFIX.search(source)) is not None and suffix[1] != DRAFT_TOKENS:
        source = source[: suffix.start()]
    return source


def write_source(parts: SourceSettings) -> str:
    """Return the source of these parts; `parse_source` reads it back."""
    engine = f"{ENGINE}{parts.engine}" if parts.engine else ""
    return parts.plain + engine + "".join(f"@{name}={value}" for name, value in parts.settings.items())


def apply_settings(serving: Serving, settings: Mapping[str, str]) -> Serving:
    """Return the serving with these settings. Raises RequestError for a value that none can have, and for a setting
    that its engine does not take."""
    if not settings:
        return serving
    values: dict[str, Any] = {name: _read_value(value) for name, value in settings.items()}
    try:
        return Serving.model_validate({**serving.model_dump(), **values})
    except ValidationError as error:
        flaw = first_flaw(error)
        named = {flaw.field: settings[flaw.field]} if flaw.field in settings else settings
        written = "".join(f"@{name}={value[:MOST_VALUE]}" for name, value in named.items())
        raise RequestError(f"`{written}` {flaw.problem}.") from None


def _read_value(written: str) -> str | bool | int | None:
    """Return `on`, `off`, `true` and `false` as truth values, digits as a number, nothing as unset."""
    for truth, word in TRUTH_WORDS.items():
        if written in {word, str(truth).lower()}:
            return truth
    return int(written) if written.isdecimal() else written or None


def name_settings(settings: Mapping[str, str]) -> str:
    """Return settings as part of a variant's name: `, KV cache q8_0, threads 2`; empty without any."""
    return "".join(f", {TITLES.get(name) or name.replace('_', ' ')} {value}" for name, value in settings.items())


def write_differences(serving: Serving) -> str:
    """Return engine and settings that differ from the default, as they are written behind a source."""
    default, differences = Serving(), dict[str, str]()
    for name in SETTINGS:
        value = getattr(serving, name)
        if value != getattr(default, name):
            differences[name] = TRUTH_WORDS[value] if isinstance(value, bool) else str(value)
    engine = None if serving.engine == default.engine else serving.engine
    return write_source(SourceSettings("", engine, differences))
