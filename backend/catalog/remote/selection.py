"""Selects the files of a model to fetch: configuration, tokenizer, safetensors and licence; never code, never another
format.

Knows nothing of how they are fetched.
"""

from __future__ import annotations

from fnmatch import fnmatch

from backend.catalog.cards.source import ModelSource
from backend.catalog.cards.tokenizer_hash import FILES as TOKENIZER_FILES
from backend.catalog.cards.weights import INDEX, read_index, weight_files
from backend.domain.model.announced_quantization import SIDE_FILES

PLAIN = frozenset(
    {
        "config.json",
        "generation_config.json",
        INDEX,
        *TOKENIZER_FILES,
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "chat_template.json",
        "chat_template.jinja",
        *SIDE_FILES,
    }
)
LICENCES = ("LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*", "license*", "COPYING*")
TEXT = (".md", ".txt")


def files_to_fetch(source: ModelSource) -> dict[str, int]:
    """Bytes by name of the files to fetch. Raises InvalidModel where the weights cannot be used."""
    sizes = source.sizes()
    weights = weight_files(source, sizes, read_index(source, sizes))
    chosen = {*weights, *(file for file in sizes if file in PLAIN or _is_licence(file))}
    return {file: sizes[file] for file in sorted(chosen)}


def _is_licence(file: str) -> bool:
    plain = "." not in file or file.endswith(TEXT)
    return plain and any(fnmatch(file, pattern) for pattern in LICENCES)
