"""Fetches the next-token probabilities that a server reports on held-out text, while it is up for the load."""

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
from backend.domain.load.prompt_lines import GREEDY_PROMPTS
from backend.endpoint import completion, models
from backend.worker.measuring.server_pool import Endpoint

WINDOWS, LEAST_WINDOWS, LENGTH = 12, 2, 256
"""Windows of the held-out text, most and least, and tokens of each: few, since a reply lists every position's tokens as
text."""
LOGPROBS = 20
"""Tokens per position: the most that vLLM reports unless it is started with another --max-logprobs."""
WindowLogprobs = Sequence[Sequence[TokenLogprobs]]
"""The reported log-probabilities by window and position."""


def held_out_windows(variants: Sequence[Variant], text: str | None, prompts: int = GREEDY_PROMPTS) -> list[list[int]]:
    """Return windows of token ids to ask with; none if the baseline's tokenizer is missing or the text is too short.

    The first variant is the baseline. A person's own text is not sent to an address; all variants then get the bundled
    text. With fewer `prompts` than usual there are fewer windows in proportion.
    """
    if variants[0].model_path is None:
        return []
    from backend.evaluate.quality import scoring

    # Choose the text, then cut it into windows by the baseline's tokenizer.
    folder = Path(variants[0].model_path)
    documents = held_out_text.read(None if must_stay_local(variants, text) else text, folder).documents
    count = max(LEAST_WINDOWS, WINDOWS * prompts // GREEDY_PROMPTS)
    try:
        windows: list[list[int]] = scoring.window_tokens(folder, documents, LENGTH, count).tolist()
    except InvalidWorkload:
        return []
    return windows


def must_stay_local(variants: Sequence[Variant], text: str | None) -> bool:
    """Tell whether the text is a person's own and some variant is a server elsewhere, which must not read it."""
    return text is not None and text not in held_out_text.BUNDLED and any(variant.kind == "url" for variant in variants)


def fetch_logprobs(
    endpoint: Endpoint, windows: Sequence[Sequence[int]], bearer_env: str | None
) -> WindowLogprobs | None:
    """Return the log-probabilities of each window, or None if the server does not report them."""
    try:
        name = endpoint.served_name or models(endpoint.url, bearer_env)[0]
        return [_fetch_window(endpoint, name, window, bearer_env) for window in windows] or None
    # A server that reports none, or fewer than asked, is measured all the same.
    except (WhetstoneError, ValueError, LookupError):
        return None


def _fetch_window(endpoint: Endpoint, name: str, window: Sequence[int], bearer_env: str | None) -> list[TokenLogprobs]:
    if endpoint.server is not None:
        return endpoint.server.prompt_logprobs(window, LOGPROBS)
    body = {"model": name, "prompt": list(window), "max_tokens": 1, "temperature": 0, "prompt_logprobs": LOGPROBS}
    return served_divergence.parse_prompt_logprobs(first_choice(completion(endpoint.url, body, bearer_env)))


def quality_figures(logprobs: dict[int, WindowLogprobs]) -> dict[int, dict[str, Any]]:
    """Return the served figures of `Quality` by variant index, compared with the first variant's."""
    if 0 not in logprobs:
        return {}
    figures = {}
    for index, windows in logprobs.items():
        served = served_divergence.compare_windows(logprobs[0], windows) if index else None
        if served is not None:
            figures[index] = {
                "served_kl": served.kl,
                "served_kl_ci95": served.kl_ci95,
                "served_same_top": served.same_top,
            }
    return figures
