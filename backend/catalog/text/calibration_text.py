"""Calibration text: the bundled one, or a user's JSONL, Parquet or text file, read and checked before work starts.

Knows nothing of quantization: texts in, texts out, or a sentence that says why a file will not do.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from backend.catalog.text import token_lengths
from backend.domain.errors import InvalidWorkload
from backend.domain.recipe import calibration_text, recovery
from backend.settings import ASSETS

BUNDLED = ASSETS / "text" / "calibration.txt"
HELD_OUT = ASSETS / "text" / "held_out.txt"
"""What the quality of an artifact is measured on."""
FIELDS = ("text", "prompt")
"""Where a JSONL line or a Parquet row has its text, the first that is there."""
MAX_BYTES = 50_000_000
COUNTED = 64
"""Texts whose tokens are counted at a time, each up to as many characters for a token that is needed."""


def texts(path: str | None) -> list[str]:
    """The documents of a file; None is the bundled text.

    A JSONL line or a Parquet row is a document, any other file is one. Raises InvalidWorkload where it is missing, too large,
    empty, or does not decode.
    """
    source = Path(path) if path else BUNDLED
    content = _content(source)
    match source.suffix.lower():
        case ".parquet":
            found = _parquet(source)
        case ".jsonl" | ".ndjson":
            found = _jsonl(source, _decoded(source, content))
        case _:
            found = [_decoded(source, content)]
    found = [text for text in found if text.strip()]
    if not found:
        raise InvalidWorkload(f"The calibration file {source.name} is empty: give a few hundred kilobytes of typical text.")
    return found


def check(path: str | None, model_dir: Path, length: int) -> list[str]:
    """`texts`, if they are good for calibrating the model in `model_dir` with sequences of `length` tokens.

    Raises InvalidWorkload as `texts` does, and where they are shorter than one sequence or overlap the held-out text;
    InvalidModel where the tokenizer is another model's.
    """
    found = texts(path)
    name = Path(path).name if path else "the bundled calibration text"
    counted = _tokens(model_dir, found, length)
    if counted is not None:
        total, largest = counted
        calibration_text.check_vocabulary(json.loads((model_dir / "config.json").read_bytes()), largest)
        if total < length:
            raise InvalidWorkload(
                f"{name} is only {total} tokens, shorter than one sequence of {length}: give more text, or a smaller `length`."
            )
    if path is not None:
        check_unseen(name, found)
    return found


def check_spare(path: str | None, found: list[str], model_dir: Path, samples: int, length: int) -> None:
    """Raises InvalidWorkload where the texts leave too little for a recovery beside `samples` sequences of `length` tokens."""
    needed = (samples + recovery.SPARE_SEQUENCES) * length
    counted = _tokens(model_dir, found, needed)
    if counted is not None and counted[0] < needed:
        name = Path(path).name if path else "the bundled calibration text"
        raise InvalidWorkload(
            f"{name} is {counted[0]:,} tokens, and recovery needs {needed:,}: {samples} sequences of {length} to calibrate with "
            f"and {recovery.SPARE_SEQUENCES} that it did not see: give more text, or fewer `samples` or a smaller `length`."
        )


def check_unseen(name: str, found: list[str]) -> None:
    """Raises InvalidWorkload where the texts hold more of the held-out text than any code does."""
    seen = calibration_text.share(HELD_OUT.read_text(encoding="utf-8"), found)
    if seen > calibration_text.MOST:
        raise InvalidWorkload(
            f"{name} holds {seen:.0%} of the held-out text that quality is measured on (in runs of {calibration_text.RUN} "
            "words), so the report would flatter: take that text out."
        )


def _content(source: Path) -> bytes:
    try:
        if source.stat().st_size > MAX_BYTES:
            raise InvalidWorkload(f"{source.name} has more than {MAX_BYTES // 1_000_000} MB: take a sample of it.")
        return source.read_bytes()
    except OSError as error:
        raise InvalidWorkload(f"{source.name} cannot be read ({error.strerror}): check the path and its permissions.") from None


def _decoded(source: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidWorkload(f"{source.name} is not UTF-8 text (byte {error.start}): convert it first.") from None


def _jsonl(source: Path, content: str) -> list[str]:
    found = []
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            document = None
        found.append(_field(source, number, document))
    return found


def _field(source: Path, number: int, document: Any) -> str:
    if isinstance(document, dict):
        for name in FIELDS:
            if isinstance(document.get(name), str):
                return str(document[name])
    raise InvalidWorkload(f'Line {number} of {source.name} is not an object with "text" or "prompt".')


def _parquet(source: Path) -> list[str]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(source) as file:
            columns = [name for name in FIELDS if name in file.schema_arrow.names]
            if not columns:
                raise InvalidWorkload(f'{source.name} has no column "text" or "prompt": rename the column that has the text.')
            rows = file.read(columns=columns[:1]).column(0).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        first = str(error).partition("\n")[0].rstrip(".")
        raise InvalidWorkload(f"{source.name} is not a Parquet file that can be read ({first}): write it again.") from None
    if any(row is not None and not isinstance(row, str) for row in rows):
        raise InvalidWorkload(f"The column `{columns[0]}` of {source.name} is not text: give one that is.")
    return [row for row in rows if row is not None]


def _tokens(model_dir: Path, found: list[str], enough: int) -> tuple[int, int] | None:
    """Tokens of the texts, counted until there are `enough`, and the largest; None where the model has no tokenizer.json."""
    total, largest = 0, -1
    for start in range(0, len(found), COUNTED):
        encoded = token_lengths.encoded(model_dir, [text[: enough * COUNTED] for text in found[start : start + COUNTED]])
        if encoded is None:
            return None
        total += sum(map(len, encoded))
        largest = max([largest, *(max(ids) for ids in encoded if ids)])
        if total >= enough:
            break
    return total, largest
