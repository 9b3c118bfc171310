"""Encodes texts with a GGUF file's own tokenizer data, by llama.cpp's rules.

It shares no code with the tokenizer that an import writes. Source: src/llama-vocab.cpp of llama.cpp (commit 00ad355e):
`tokenizer_st_partition`, `llm_tokenizer_bpe_session`, `llm_tokenizer_spm_session`. Slow, for a few lines of text.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from backend.domain.model.gguf.pretokenizers import PREFIX, TokenizerPlan

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
"""`llama_token_type`; all but normal tokens are found in a text before it is split."""
TEXTS = (
    "def add(first, second):\n    return first + 12345  # it's fine",
    "Hello, world! They'll say: 3.14159 is NOT 22/7.",
    "  two  spaces,\n\n\ta tab and a line \n",
    "naïve café, 東京は日本の首都, Привет, \u0661\u0662 🙂!",
    '{"key": [1, 2.5e-3, null], \'HTTPServer\': "x_y-z"}',
)


def texts(special: list[str]) -> list[str]:
    """Return the texts that are tried: plain ones, and some with special tokens inside."""
    return [*TEXTS, *(f"Hi there{token} and{token}\nmore" for token in special)]


class TokenRules:
    """`lists` are the keys of the file with several values; `special` the ids of tokens that are found before a text is
    split, longest text first."""

    def __init__(self, lists: Mapping[str, list[Any]], plan: TokenizerPlan, tokens: list[str]) -> None:
        self.plan, self.tokens = plan, tokens
        self.numbered = {token: number for number, token in enumerate(tokens)}
        self.scores = lists.get(f"{PREFIX}scores", [])
        self.ranks: dict[str, int] = {}
        for rank, merge in enumerate(lists.get(f"{PREFIX}merges", [])):
            self.ranks.setdefault(merge, rank)
        kinds = enumerate(lists[f"{PREFIX}token_type"][: len(tokens)])
        special = [number for number, kind in kinds if kind in {UNKNOWN, CONTROL, USER_DEFINED}]
        self.special = sorted(special, key=lambda number: -len(tokens[number].encode()))

    def encode(self, text: str) -> list[int]:
        """Encode a text, special tokens in it included, with the token that begins every text."""
        ids = [self.plan.ids["bos"]] if self.plan.begins else []
        for piece in self._partition(text):
            if isinstance(piece, int):
                ids.append(piece)
            elif self.plan.pre is None:
                ids += self._sentence_piece(piece)
            else:
                ids += self._byte_level(piece)
        return ids

    def _partition(self, text: str) -> list[int | str]:
        """Cut a text at its special tokens, which become their ids."""
        pieces: list[int | str] = [text]
        for number in self.special:
            if self.tokens[number] not in text:
                continue
            # Only text is cut further.
            split: list[int | str] = []
            for piece in pieces:
                if isinstance(piece, int):
                    split.append(piece)
                    continue
                first, *rest = piece.split(self.tokens[number])
                split.append(first)
                for other in rest:
                    split += [number, other]
            pieces = [piece for piece in split if piece != ""]
        return pieces

    def _byte_level(self, text: str) -> list[int]:
        import regex

        pre = self.plan.pre
        assert pre is not None
        pieces = [unicodedata.normalize("NFC", text) if pre.nfc else text]
        # Each pattern splits what the one before left: matches, and what lies between them.
        for pattern in pre.patterns:
            split: list[str] = []
            for piece in pieces:
                split += [part for part in regex.split(f"({pattern})", piece) if part]
            pieces = split
        ids = []
        for piece in pieces:
            word = "".join(_byte_letters()[byte] for byte in piece.encode())
            if pre.whole_words and word in self.numbered:
                ids.append(self.numbered[word])
                continue
            for symbol in self._merged(word):
                known = [symbol] if symbol in self.numbered else list(symbol)
                ids += [self.numbered[letter] for letter in known if letter in self.numbered]
        return ids

    def _merged(self, word: str) -> list[str]:
        """Join the pair of lowest rank, the leftmost first, until no pair has a rank."""
        symbols = list(word)
        while True:
            ranked = [(self.ranks.get(f"{one} {two}"), place) for place, (one, two) in enumerate(_pairs(symbols))]
            known = [(rank, place) for rank, place in ranked if rank is not None]
            if not known:
                return symbols
            _, place = min(known)
            symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]

    def _sentence_piece(self, text: str) -> list[int]:
        """Encode a text without special tokens: pairs are joined by score, and what is no token becomes bytes."""
        # 1. Join the pair whose joined text has the highest score, the leftmost first.
        symbols = list((" " + text if self.plan.space_prefix else text).replace(" ", "▁"))
        while True:
            joined = [(self.numbered.get(one + two), place) for place, (one, two) in enumerate(_pairs(symbols))]
            known = [(-self.scores[number], place) for number, place in joined if number is not None]
            if not known:
                break
            _, place = min(known)
            symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]

        # 2. Replace the symbols by their ids.
        ids = []
        for symbol in symbols:
            if symbol in self.numbered:
                ids.append(self.numbered[symbol])
            else:
                ids += [self._byte(byte) for byte in symbol.encode()]
        return ids

    def _byte(self, byte: int) -> int:
        return self.numbered.get(f"<0x{byte:02X}>", self.numbered.get(chr(byte), self.plan.ids["unknown"]))


def _pairs(symbols: list[str]) -> list[tuple[str, str]]:
    return list(pairwise(symbols))


def _byte_letters() -> list[str]:
    """Return GPT-2's letter for each byte: printable ones stand for themselves, others for letters from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    hidden = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(hidden)) for byte in range(256)]
