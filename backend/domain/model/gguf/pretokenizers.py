"""Rules that split texts before byte-pair merges, by `tokenizer.ggml.pre`.

Source: `llama_vocab::impl::load` and `llm_tokenizer_bpe` in src/llama-vocab.cpp of llama.cpp (commit 00ad355e). A kind
that is not here is refused: another splitting gives other tokens without any error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from backend.domain.errors import InvalidModel
from backend.domain.model.gguf.keys import not_carried

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_AFTER_NUMBERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_AFTER_NUMBERS}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_AFTER_NUMBERS}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class PreTokenizer(NamedTuple):
    """`patterns` split one after the other, what lies between matches is a piece too.

    `whole_words`: a piece that is a token itself is not merged. `begins`: texts begin with the first token where the
    file says nothing. `nfc`: the original normalizes to NFC, which GGUF cannot state.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    begins: bool = False
    nfc: bool = False


_DIGITS_ALONE = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA_3 = PreTokenizer((_LLAMA3,), whole_words=True, begins=True)
PRE_TOKENIZERS = {
    "gpt-2": PreTokenizer((_GPT2,)),
    "smollm": _DIGITS_ALONE,
    "starcoder": _DIGITS_ALONE,
    "refact": _DIGITS_ALONE,
    "llama-bpe": _LLAMA_3,
    "llama3": _LLAMA_3,
    "llama-v3": _LLAMA_3,
    "falcon3": _LLAMA_3,
    "smaug-bpe": PreTokenizer((_LLAMA3,)),
    "qwen2": PreTokenizer((_QWEN2,), nfc=True),
    "deepseek-r1-qwen": PreTokenizer((_QWEN2,)),
    "tekken": PreTokenizer((_TEKKEN,), whole_words=True, begins=True),
}
"""`tokenizer.ggml.pre` -> how it splits. Qwen's own tokenizer.json has the NFC normalizer, the distilled models' has
none."""
BYTE_LEVEL, SENTENCE_PIECE = "gpt2", "llama"
"""`tokenizer.ggml.model` of byte-level BPE, and of SentencePiece's BPE with scores."""
PREFIX = "tokenizer.ggml."
SPECIAL_DEFAULTS = {SENTENCE_PIECE: {"bos": 1, "eos": 2, "unknown": 0}}
"""Ids that llama.cpp takes where the file states none."""


class TokenizerPlan(NamedTuple):
    """`pre` is None for SentencePiece. `begins`: texts begin with the token `bos`. `ids` are by llama.cpp's names."""

    pre: PreTokenizer | None
    begins: bool
    space_prefix: bool
    ids: dict[str, int]


def tokenizer_plan(file: str, values: Mapping[str, Any], arrays: Mapping[str, int]) -> TokenizerPlan:
    """Return how texts become tokens. Raises InvalidModel for a kind that is not known, and for parts that are
    missing."""
    model, count = values.get(f"{PREFIX}model"), arrays.get(f"{PREFIX}tokens", 0)
    if not count:
        raise InvalidModel(f"{file} has no tokenizer: import the original model.")
    if model not in {BYTE_LEVEL, SENTENCE_PIECE}:
        raise not_carried(file, f"{PREFIX}model", values)
    # What the kind of tokenizer needs.
    ranked = "merges" if model == BYTE_LEVEL else "scores"
    lengths = {"token_type": count} | ({"scores": count} if model == SENTENCE_PIECE else {})
    for name in ("token_type", ranked):
        if arrays.get(f"{PREFIX}{name}", 0) < lengths.get(name, 1):
            raise InvalidModel(f"{file} has no whole `{PREFIX}{name}` for its tokenizer: import the original model.")
    pre = _pre_tokenizer(file, values) if model == BYTE_LEVEL else None
    # What is put before a text.
    space = values.get(f"{PREFIX}add_space_prefix", pre is None)
    if space and pre is not None:
        raise not_carried(file, f"{PREFIX}add_space_prefix", values)
    ids = SPECIAL_DEFAULTS.get(model, {}) | _ids(values)
    for name, number in ids.items():
        if not 0 <= number < count:
            raise InvalidModel(
                f"{file} has no token {number} for `{PREFIX}{name}_token_id`: import the original model."
            )
    begins = bool(values.get(f"{PREFIX}add_bos_token", pre is None or pre.begins))
    if begins and "bos" not in ids:
        raise InvalidModel(f"{file} begins texts with a token that it does not name: import the original model.")
    return TokenizerPlan(pre, begins, bool(space), ids)


def _pre_tokenizer(file: str, values: Mapping[str, Any]) -> PreTokenizer:
    """Return how texts are split before merges. Raises InvalidModel where that is not stated or not known."""
    kind = values.get(f"{PREFIX}pre")
    if kind is None:
        raise InvalidModel(
            f"{file} does not say how its tokenizer splits texts (`{PREFIX}pre`): import the original model."
        )
    if kind not in PRE_TOKENIZERS:
        raise not_carried(file, f"{PREFIX}pre", values)
    return PRE_TOKENIZERS[kind]


def _ids(values: Mapping[str, Any]) -> dict[str, int]:
    names = ("bos", "eos", "eot", "eom", "unknown", "padding")
    stated = {name: values.get(f"{PREFIX}{name}_token_id") for name in names}
    return {name: number for name, number in stated.items() if type(number) is int}
