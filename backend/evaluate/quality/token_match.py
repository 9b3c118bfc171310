"""Checks whether a server elsewhere reads token ids as a tokenizer here does; only then do its task scores count.

lm-eval sends prompts as token ids and reads the log-probabilities that the server echoes. Knows nothing of tasks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backend.domain.errors import EndpointUnreachable
from backend.domain.load.openai_json import NotAnAnswer, first_choice
from backend.endpoint import completion
from backend.layered import tokenizers

PROBE = "def f(x):\n\treturn x ** 2  # Café, naïve; 3,141.59 Ελληνικά 東京 🙂"
"""Code, digits and several scripts: a vocabulary that returns all of it for the same ids is the same in use."""


def token_mismatch(url: str, model: str, tokenizer: Path, bearer_env: str | None = None) -> str | None:
    """Return why the server cannot be asked in tokens of the tokenizer in that folder, as a sentence; None if it can.

    Raises RequestError if the address or the token variable is wrong.
    """
    ids, text = _tokens(tokenizer)
    body = {"model": model, "prompt": ids, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
    try:
        answer = completion(url, body, bearer_env)
    except EndpointUnreachable as error:
        return f"it was asked for the log-probabilities of a prompt of token ids. {error}"
    return _differs(answer, len(ids), text)


def _tokens(tokenizer: Path) -> tuple[list[int], str]:
    """Return the probe's ids, and the text that they stand for."""
    loaded = tokenizers.load(tokenizer)
    ids = list(loaded(PROBE, add_special_tokens=False, verbose=False)["input_ids"])
    return ids, str(loaded.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _differs(answer: dict[str, Any], count: int, text: str) -> str | None:
    """Return how the answer shows another tokenizer, or None. `count` tokens were sent; one more may be added."""
    try:
        choice = first_choice(answer)
        echoed, scored = str(choice["text"]), list(choice["logprobs"]["token_logprobs"])
    except (NotAnAnswer, KeyError, TypeError):
        return "it does not echo the log-probabilities of a prompt, which scoring reads."
    if not echoed.startswith(text):
        return "it reads token ids as another text than the tokenizers here."
    if not count <= len(scored) <= count + 1:
        return f"it echoes {len(scored)} log-probabilities where {count} tokens were sent."
    return None
