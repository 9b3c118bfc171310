"""Describes the tokenizer of a model folder by the keys of a GGUF file, and proves that they make the same tokens.

tokenizer.json is what counts. Which of llama.cpp's rules splits texts (`tokenizer.ggml.pre`) is found by trying: the
first whose tokens are those of the tokenizer on every text. SentencePiece's scores are made of the ranks of merges.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from backend.domain.errors import InvalidModel
from backend.domain.model.gguf.pretokenizers import (
    BYTE_LEVEL,
    PRE_TOKENIZERS,
    PREFIX,
    SENTENCE_PIECE,
    TokenizerPlan,
    tokenizer_plan,
)
from backend.engines.gguf.token_rules import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, TokenRules, texts
from backend.layered import tokenizers

UNUSED, BYTE = 5, 6
"""`llama_token_type` of rows of the embedding without a token, and of bytes."""
LATEST = 10**9
"""The rank of a token that no merge makes."""
IDS = {"bos": "bos_token_id", "eos": "eos_token_id", "unknown": "unk_token_id", "padding": "pad_token_id"}
"""llama.cpp's names of special tokens -> transformers'."""


class Vocabulary(NamedTuple):
    """`values` are keys with one value, `lists` those with several; `templates` are chat templates by name."""

    values: dict[str, Any]
    lists: dict[str, list[Any]]
    templates: dict[str, str]


def describe(folder: Path, vocabulary_size: int) -> Vocabulary:
    """Return the keys of the folder's tokenizer. Raises InvalidModel, one sentence, where no keys say the same."""
    # 1. What tokenizer.json and the settings beside it say.
    loaded = tokenizers.load(folder)
    document = json.loads((folder / tokenizers.FILE).read_bytes())
    model = document["model"]
    if model.get("type") != "BPE":
        raise InvalidModel(
            f"Its tokenizer is of the kind {model.get('type')}, and GGUF files are written of byte-pair encoding only."
        )
    # 2. Tokens, their kinds, and what ranks them.
    lists = _tokens(document, vocabulary_size)
    ids = {name: getattr(loaded, field) for name, field in IDS.items() if getattr(loaded, field) is not None}
    values: dict[str, Any] = {f"{PREFIX}{name}_token_id": int(number) for name, number in ids.items()}
    values |= _end_of_turn(folder, ids.get("eos"))
    values[f"{PREFIX}add_bos_token"] = _begins(loaded, ids)
    # 3. The rule that makes the same tokens.
    values |= _find_rule(document, loaded, values, lists)
    return Vocabulary(values, lists, _templates(loaded))


def _tokens(document: Mapping[str, Any], size: int) -> dict[str, list[Any]]:
    """Return tokens and kinds by id, merges and scores. Raises InvalidModel for more tokens than the embedding has."""
    # 1. Tokens of the model, then added ones.
    model, added = document["model"], document.get("added_tokens", [])
    numbered = {number: token for token, number in model["vocab"].items()}
    numbered |= {int(entry["id"]): str(entry["content"]) for entry in added}
    if max(numbered) >= size:
        raise InvalidModel(f"Its tokenizer has the token {max(numbered)}, beyond the {size} rows of the embedding.")
    tokens = [numbered.get(number, f"[PAD{number}]") for number in range(size)]

    # 2. Their kinds.
    kinds = [NORMAL if number in numbered else UNUSED for number in range(size)]
    if model.get("byte_fallback"):
        for byte in range(256):
            if (number := model["vocab"].get(f"<0x{byte:02X}>")) is not None:
                kinds[number] = BYTE
    for entry in added:
        kinds[int(entry["id"])] = CONTROL if entry.get("special") else USER_DEFINED
    if model.get("byte_fallback") and model.get("unk_token") in model["vocab"]:
        kinds[model["vocab"][model["unk_token"]]] = UNKNOWN

    # 3. Merges, whose parts are written with a space between them, and scores.
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(pairs):
        ranks.setdefault("".join(pair), rank)
    typed = zip(tokens, kinds, strict=True)
    scores = [-float(ranks.get(token, LATEST)) if kind == NORMAL else 0.0 for token, kind in typed]
    return {
        f"{PREFIX}tokens": tokens,
        f"{PREFIX}token_type": kinds,
        f"{PREFIX}merges": [" ".join(pair) for pair in pairs],
        f"{PREFIX}scores": scores,
    }


def _end_of_turn(folder: Path, eos: int | None) -> dict[str, Any]:
    """Return the key of a second token that ends an answer, where generation_config.json names one."""
    try:
        stated = json.loads((folder / "generation_config.json").read_bytes()).get("eos_token_id")
    except (OSError, ValueError):
        return {}
    others = [number for number in stated if number != eos] if isinstance(stated, list) else []
    return {f"{PREFIX}eot_token_id": int(others[0])} if others else {}


def _begins(loaded: Any, ids: Mapping[str, int]) -> bool:
    """Return whether texts begin with the token `bos`. Raises InvalidModel where they end with a token too."""
    plain, whole = (list(loaded("Hi", add_special_tokens=special)["input_ids"]) for special in (False, True))
    if whole == plain:
        return False
    if whole == [ids.get("bos"), *plain]:
        return True
    raise InvalidModel("Its tokenizer puts tokens after a text, which a GGUF file of its kind cannot state.")


def _find_rule(
    document: Mapping[str, Any], loaded: Any, values: Mapping[str, Any], lists: dict[str, list[Any]]
) -> dict[str, Any]:
    """Return the keys of the rule by which the file's tokens are those of the tokenizer on every text, and remove the
    list that it does not read. Raises InvalidModel where there is none."""
    # 1. The texts, some with special tokens inside, and what is expected.
    tokens, kinds = lists[f"{PREFIX}tokens"], lists[f"{PREFIX}token_type"]
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL][:3]
    expected = {text: list(loaded(text)["input_ids"]) for text in texts(special)}
    lengths = {key: len(listed) for key, listed in lists.items()}

    # 2. Try each rule.
    for rule in _rules(document):
        plan = tokenizer_plan("The model", {**values, **rule}, lengths)
        if _makes(plan, lists, tokens, expected):
            lists.pop(f"{PREFIX}{'scores' if plan.pre else 'merges'}")
            return rule
    raise InvalidModel(
        "Its tokenizer splits texts by none of the rules that a GGUF file can name here, so that none is written."
    )


def _rules(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the keys of each rule that the structure of tokenizer.json does not exclude."""
    model, normalizer = document["model"], json.dumps(document.get("normalizer"))
    if model.get("byte_fallback"):
        for space in (True, False):
            yield {f"{PREFIX}model": SENTENCE_PIECE, f"{PREFIX}add_space_prefix": space}
        return
    whole, nfc = bool(model.get("ignore_merges")), '"NFC"' in normalizer
    for kind, rule in PRE_TOKENIZERS.items():
        if (rule.whole_words, rule.nfc) == (whole, nfc):
            yield {f"{PREFIX}model": BYTE_LEVEL, f"{PREFIX}pre": kind}


def _makes(
    plan: TokenizerPlan, lists: Mapping[str, list[Any]], tokens: list[str], expected: Mapping[str, list[int]]
) -> bool:
    """Return whether the rule makes the expected tokens of every text."""
    rules = TokenRules(lists, plan, tokens)
    return all(rules.encode(text) == ids for text, ids in expected.items())


def _templates(loaded: Any) -> dict[str, str]:
    template = loaded.chat_template
    if isinstance(template, str):
        return {"default": template}
    return dict(template or {})
