"""Writes the tokenizer that a GGUF file describes as tokenizer.json, and compares it with the file's own rules."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from backend import files
from backend.domain.errors import InvalidModel
from backend.domain.model.gguf.keys import NAMED_TEMPLATE
from backend.domain.model.gguf.pretokenizers import PREFIX, PreTokenizer, TokenizerPlan
from backend.engines.gguf.gguf_file import GgufFile
from backend.engines.gguf.token_rules import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, TokenRules, texts
from backend.layered import tokenizers

NAMES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
"""llama.cpp's names of special tokens -> transformers'."""
MADE_UP = frozenset({"backend", "is_local", "local_files_only"})
"""Fields that transformers writes of how the tokenizer was loaded."""
MOST_TRIED = 3
"""Special tokens that are tried inside a text."""


def write(stored: GgufFile, plan: TokenizerPlan, folder: Path, max_positions: int) -> None:
    """Write tokenizer.json, tokenizer_config.json and the chat templates. Raises InvalidModel if one cannot be made."""
    from transformers import PreTrainedTokenizerFast

    # 1. Let transformers write all files.
    tokens = vocabulary(stored)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=_make(stored, plan, tokens),
        model_max_length=max_positions,
        clean_up_tokenization_spaces=False,
        chat_template=_templates(stored),
        **{NAMES[name]: tokens[number] for name, number in plan.ids.items() if name in NAMES},
    )
    wrapped.save_pretrained(folder)

    # 2. Name a class that transformers 4 and 5 know, and leave out where it was loaded.
    path = folder / "tokenizer_config.json"
    document = json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    document = {name: value for name, value in document.items() if name not in MADE_UP}
    files.write(path, json.dumps(document, indent=1) + "\n")


def vocabulary(stored: GgufFile) -> list[str]:
    """Return the tokens by id; an empty one is named as llama.cpp names it. Raises InvalidModel if two are the same."""
    tokens = [token or f"[EMPTY_{number}]" for number, token in enumerate(stored.lists[f"{PREFIX}tokens"])]
    if len(set(tokens)) < len(tokens):
        raise InvalidModel("its tokenizer has two tokens of the same text")
    return tokens


def _templates(stored: GgufFile) -> str | dict[str, str] | None:
    """Return the chat template, or all templates by their names if there are several."""
    default: str | None = stored.values.get("tokenizer.chat_template")
    named: dict[str, str] = {}
    for key, text in stored.values.items():
        match = NAMED_TEMPLATE.fullmatch(key)
        if match is not None:
            named[match[1]] = text
    if not named:
        return default
    return named | ({"default": default} if default is not None else {})


def _make(stored: GgufFile, plan: TokenizerPlan, tokens: list[str]) -> Any:
    """Make the tokenizer with the library `tokenizers`."""
    from tokenizers import AddedToken, processors

    tokenizer = _byte_level(stored, plan.pre, tokens) if plan.pre else _sentence_piece(stored, plan, tokens)
    # Tokens that are found in a text before it is split: control tokens, and those that users defined.
    kinds = stored.lists[f"{PREFIX}token_type"]
    added = [
        (token, kind) for token, kind in zip(tokens, kinds, strict=False) if kind in {CONTROL, UNKNOWN, USER_DEFINED}
    ]
    special = [AddedToken(token, normalized=False, special=True) for token, kind in added if kind != USER_DEFINED]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token, kind in added if kind == USER_DEFINED])
    if plan.begins:
        first, number = tokens[plan.ids["bos"]], plan.ids["bos"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", pair=f"{first} $A {first} $B", special_tokens=[(first, number)]
        )
    return tokenizer


def _byte_level(stored: GgufFile, pre: PreTokenizer, tokens: list[str]) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    merges = [split_merge(merge) for merge in stored.lists[f"{PREFIX}merges"]]
    numbered = {token: number for number, token in enumerate(tokens)}
    tokenizer: Any = Tokenizer(models.BPE(numbered, merges, ignore_merges=pre.whole_words))
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in pre.patterns]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    if pre.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def split_merge(merge: str) -> tuple[str, str]:
    """Split `Ġ t` into its two parts; the first may itself begin with a space. Raises InvalidModel if there is one."""
    middle = merge.find(" ", 1)
    if middle < 0:
        raise InvalidModel("its tokenizer has a merge of one part")
    return merge[:middle], merge[middle + 1 :]


def _sentence_piece(stored: GgufFile, plan: TokenizerPlan, tokens: list[str]) -> Any:
    """Make a SentencePiece tokenizer."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    # 1. SentencePiece's BPE joins the pair whose result has the highest score: make merges in that order.
    numbered = {token: number for number, token in enumerate(tokens)}
    scores = stored.lists[f"{PREFIX}scores"]
    pairs: list[tuple[float, int, str, str]] = []
    for token, number in numbered.items():
        for middle in range(1, len(token)):
            first, second = token[:middle], token[middle:]
            if first in numbered and second in numbered:
                pairs.append((-scores[number], number, first, second))
    merges = [(first, second) for _, _, first, second in sorted(pairs)]
    unknown = tokens[plan.ids["unknown"]]
    whole = [] if merges else whole_pieces(tokens, stored.lists[f"{PREFIX}token_type"], scores)
    bpe = models.BPE(numbered, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True, ignore_merges=bool(whole))
    tokenizer: Any = Tokenizer(bpe)

    # 2. A vocabulary whose pieces no merge makes is split into whole pieces instead.
    if whole:
        either = "|".join([*map(re.escape, whole), r"[\s\S]"])
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(either), behavior="isolated")

    # 3. Spaces become `▁` and come back.
    prefix = [normalizers.Prepend("▁")] if plan.space_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if plan.space_prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def whole_pieces(tokens: list[str], kinds: list[int], scores: list[float]) -> list[str]:
    """Return the pieces of several letters that no merge of two pieces of the vocabulary makes, the longest first.

    llama.cpp joins letters whose text together is a piece, also where the letters alone are none, the highest score
    first and the leftmost of equal ones. That finds the longest piece at each place, from left to right, where no two
    pieces overlap, or where all scores are equal and every piece grows from its beginning letter by letter. Else the
    answer is empty.
    """
    scored = {token: score for token, kind, score in zip(tokens, kinds, scores, strict=False) if kind == NORMAL}
    pieces = [token for token in scored if len(token) > 1]
    # 1. What joining letters and pieces reaches, the short ones first.
    reached: set[str] = set()
    for piece in sorted(pieces, key=len):
        parts = ((piece[:middle], piece[middle:]) for middle in range(1, len(piece)))
        if any(all(len(part) == 1 or part in reached for part in pair) for pair in parts):
            reached.add(piece)
    # 2. Two pieces overlap where the end of one is the beginning of another: then the order of joining counts.
    begins: set[str] = set()
    ends: set[str] = set()
    for piece in reached:
        begins |= {piece[:length] for length in range(1, len(piece))}
        ends |= {piece[-length:] for length in range(1, len(piece))}
    grows = all(len(piece) == 2 or piece[:-1] in reached for piece in reached)
    if begins & ends and not (grows and len({scored[piece] for piece in reached}) == 1):
        return []
    return sorted(reached, key=lambda piece: (-len(piece), piece))


def check(stored: GgufFile, plan: TokenizerPlan, folder: Path) -> int:
    """Compare the tokenizer of the folder with the file's own rules; return the number of texts that were tried.

    Raises InvalidModel for the first text of which the two make other tokens.
    """
    # 1. Load both.
    tokens = vocabulary(stored)
    rules = TokenRules(stored.lists, plan, tokens)
    loaded = tokenizers.load(folder)
    tried = texts([tokens[number] for number in rules.special[:MOST_TRIED]])

    # 2. Encode every text with both.
    for text in tried:
        own, expected = list(loaded(text)["input_ids"]), rules.encode(text)
        if own != expected:
            place = next(
                (position for position, (one, other) in enumerate(zip(own, expected, strict=False)) if one != other), 0
            )
            raise InvalidModel(
                f"its tokenizer cannot be carried: in {text[:30]!r}, token {place + 1} and what follows are "
                f"{own[place : place + 4]} where the file's own rules give {expected[place : place + 4]}. Import the "
                "original model"
            )
    return len(tried)
