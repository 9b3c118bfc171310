"""What a server tells of its next-token probabilities on held-out text, asked in the time it is up for the load
anyway."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backend.catalog.text import held_out_text
from backend.domain.errors import InvalidWorkload, WhetstoneError
from backend.domain.evaluation.document import Variant
from backend.domain.limits import served_divergence
from backend.domain.limits.served_divergence import TokenLogprobs
from backend.domain.load.openai_json import first_choice
from backend.endpoint import completion, models
from backend.worker.measuring.server_pool import Endpoint

WINDOWS, LENGTH = 12, 256
"""Of the held-out text: an answer tells each position's tokens in words, so it is large."""
LOGPROBS = 20
"""Tokens a position: what vLLM tells unless it is started with another --max-logprobs."""
WindowLogprobs = Sequence[Sequence[TokenLogprobs]]


def held_out_windows(variants: Sequence[Variant], text: str | None) -> list[list[int]]:
    """Token ids to ask with; none where the baseline's tokenizer is not at hand or the text is too short.

    The first variant is the baseline. A person's own text is not sent to an address: then the bundled text is taken for
    all.
    """
    if variants[0].model_path is None:
        return []
    from backend.evaluate.quality import scoring

    folder = Path(variants[0].model_path)
    sent = None if must_stay_local(variants, text) else text
    try:
        found: list[list[int]] = scoring.window_tokens(
            folder, held_out_text.read(sent, folder).documents, LENGTH, WINDOWS
        ).tolist()
    except InvalidWorkload:
        return []
    return found


def must_stay_local(variants: Sequence[Variant], text: str | None) -> bool:
    """Whether the text is a person's own and some variant is a server elsewhere, which is not to read it."""
    return text is not None and text not in held_out_text.BUNDLED and any(variant.kind == "url" for variant in variants)


def fetch_logprobs(
    endpoint: Endpoint, tokens: Sequence[Sequence[int]], bearer_env: str | None
) -> WindowLogprobs | None:
    """Of each window; None where the server does not tell."""
    try:
        name = endpoint.served_name or models(endpoint.url, bearer_env)[0]
        return [_one(endpoint, name, window, bearer_env) for window in tokens] or None
    # a server that tells no probabilities, or not so many, loses nothing else
    except (WhetstoneError, ValueError, LookupError):
        return None


def _one(endpoint: Endpoint, name: str, window: Sequence[int], bearer_env: str | None) -> list[TokenLogprobs]:
    body = {"model": name, "prompt": list(window), "max_tokens": 1, "temperature": 0, "prompt_logprobs": LOGPROBS}
    return served_divergence.parse_prompt_logprobs(first_choice(completion(endpoint.url, body, bearer_env)))


def quality_figures(told: dict[int, WindowLogprobs]) -> dict[int, dict[str, Any]]:
    """The served figures of `Quality` by variant index, against the first variant's."""
    found = {}
    for index, windows in told.items():
        if index and 0 in told and (each := served_divergence.compare_windows(told[0], windows)) is not None:
            found[index] = {"served_kl": each.kl, "served_kl_ci95": each.kl_ci95, "served_same_top": each.same_top}
    return found
