"""Calibration text: the bundled one, or a user's JSONL, Parquet or text file, read and checked before work starts.

Knows nothing of quantization: texts in, texts out, or a sentence that says why a file will not do. What is counted in a
file is kept as long as the file and the tokenizer are the same: a page asks at every click, and tokenizing takes
seconds.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from backend import sandbox
from backend.catalog.text import token_lengths
from backend.domain.errors import InvalidWorkload
from backend.domain.recipe import calibration_text, recovery
from backend.settings import ASSETS

BUNDLED = ASSETS / "text" / "calibration.txt"
HELD_OUT = ASSETS / "text" / "held_out.txt"
"""Text that the quality of an artifact is measured on."""
FIELDS = ("text", "prompt")
"""Fields of a JSONL line or Parquet row that may hold the text; the first one present counts. Of a conversation of a
workload (`turns`) the first turn counts, since later ones say little without the answers before them."""
MAX_BYTES, MOST_LINES = 50_000_000, 200_000
COUNTED = 64
"""Texts whose tokens are counted at a time, each up to as many characters for a token that is needed."""
CACHED_COUNTS = 64
"""Files and lengths that counts are kept for."""


class File(NamedTuple):
    """A file as it is now; written anew it is another."""

    path: Path
    bytes: int
    changed_ns: int


def texts(path: str | None, *, empty: bool = False) -> list[str]:
    """The documents of a file; None is the bundled text. `empty`: it may have none.

    A JSONL line or a Parquet row is a document, any other file is one. Raises InvalidWorkload where it is missing, too
    large, empty, or does not decode.
    """
    source = Path(path) if path else BUNDLED
    content = _content(source)
    # Parquet is decoded in the sandbox.
    match source.suffix.lower():
        case ".parquet":
            texts = sandbox.run(_parquet, source, about=source.name)
        case ".jsonl" | ".ndjson":
            texts = _jsonl(source, _decoded(source, content))
        case _:
            texts = [_decoded(source, content)]
    texts = [text for text in texts if text.strip()]
    if not texts and not empty:
        raise InvalidWorkload(
            f"The calibration file {source.name} is empty: give a few hundred kilobytes of typical text."
        )
    return texts


def check(path: str | None, model_dir: Path, length: int) -> None:
    """Check that the texts are usable for calibrating the model in `model_dir` with sequences of `length` tokens.

    Raises InvalidWorkload as `texts` does, and where they are shorter than one sequence or overlap the held-out text;
    InvalidModel where the tokenizer is another model's.
    """
    file, name = _file(path), Path(path).name if path else "the bundled calibration text"
    counted = _tokens(file, _tokenizer(model_dir), length)
    if counted is not None:
        total, largest = counted
        calibration_text.check_vocabulary(sandbox.read_json_file(model_dir / "config.json"), largest)
        if total < length:
            raise InvalidWorkload(
                f"{name} is only {total} tokens, shorter than one sequence of {length}: give more text, or a smaller "
                "`length`."
            )
    if path is not None:
        _refuse_seen(name, _held_out_share(file))


def check_spare(path: str | None, model_dir: Path, samples: int, length: int) -> None:
    """Raise InvalidWorkload where the texts leave too little for a recovery beside `samples` sequences of `length`
    tokens."""
    needed = (samples + recovery.SPARE_SEQUENCES) * length
    counted = _tokens(_file(path), _tokenizer(model_dir), needed)
    if counted is not None and counted[0] < needed:
        name = Path(path).name if path else "the bundled calibration text"
        raise InvalidWorkload(
            f"{name} is {counted[0]:,} tokens, and recovery needs {needed:,}: {samples} sequences of {length} to "
            "calibrate with "
            f"and {recovery.SPARE_SEQUENCES} that it did not see: give more text, or fewer `samples` or a smaller "
            "`length`."
        )


def check_unseen(name: str, texts: list[str]) -> None:
    """Raise InvalidWorkload where the texts hold more of the held-out text than any code does."""
    _refuse_seen(name, calibration_text.share(HELD_OUT.read_text(encoding="utf-8"), texts))


def _refuse_seen(name: str, share: float) -> None:
    if share > calibration_text.MOST:
        raise InvalidWorkload(
            f"{name} holds {share:.0%} of the held-out text that quality is measured on (in runs of "
            f"{calibration_text.RUN} words), so the report would flatter: take that text out."
        )


def _file(path: str | None) -> File:
    source = Path(path) if path else BUNDLED
    try:
        now = source.stat()
    except OSError as error:
        raise _unreadable(source, error) from None
    return File(source, now.st_size, now.st_mtime_ns)


def _tokenizer(model_dir: Path) -> File | None:
    """The model's tokenizer.json; None where it has none. Not the card's hash, which is of the vocabulary without the
    merges."""
    path = model_dir / token_lengths.TOKENIZER
    return _file(str(path)) if path.is_file() else None


def _content(source: Path) -> bytes:
    try:
        if source.stat().st_size > MAX_BYTES:
            raise InvalidWorkload(f"{source.name} has more than {MAX_BYTES // 1_000_000} MB: take a sample of it.")
        return source.read_bytes()
    except OSError as error:
        raise _unreadable(source, error) from None


def _unreadable(source: Path, error: OSError) -> InvalidWorkload:
    return InvalidWorkload(f"{source.name} cannot be read ({error.strerror}): check the path and its permissions.")


def _decoded(source: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidWorkload(f"{source.name} is not UTF-8 text (byte {error.start}): convert it first.") from None


def _jsonl(source: Path, content: str) -> list[str]:
    texts = []
    for number, line in enumerate(content.split("\n", MOST_LINES), 1):
        if number > MOST_LINES or len(line) > sandbox.JSON_BYTES:
            raise InvalidWorkload(
                f"{source.name} has more than {MOST_LINES:,} lines, or one of 16 MB: take a sample of it."
            )
        if not line.strip():
            continue
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            document = None
        texts.append(_field(source, number, document))
    return texts


def _field(source: Path, number: int, document: Any) -> str:
    if isinstance(document, dict):
        for name in FIELDS:
            if isinstance(document.get(name), str):
                return str(document[name])
        turns = document.get("turns")
        if isinstance(turns, list) and turns and isinstance(turns[0], str):
            return turns[0]
    raise InvalidWorkload(f'Line {number} of {source.name} is not an object with "text" or "prompt".')


def _parquet(source: Path) -> list[str]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(source) as file:
            columns = [name for name in FIELDS if name in file.schema_arrow.names]
            if not columns:
                raise InvalidWorkload(
                    f'{source.name} has no column "text" or "prompt": rename the column that has the text.'
                )
            rows = file.read(columns=columns[:1]).column(0).to_pylist()
    except pyarrow.ArrowMemoryError:
        raise MemoryError from None
    except (pyarrow.ArrowException, OSError) as error:
        first = str(error).partition("\n")[0].rstrip(".")
        raise InvalidWorkload(
            f"{source.name} is not a Parquet file that can be read ({first}): write it again."
        ) from None
    if any(row is not None and not isinstance(row, str) for row in rows):
        raise InvalidWorkload(f"The column `{columns[0]}` of {source.name} is not text: give one that is.")
    return [row for row in rows if row is not None]


@lru_cache(maxsize=CACHED_COUNTS)
def _held_out_share(file: File) -> float:
    """Return the share of the held-out text that is in the file."""
    return calibration_text.share(HELD_OUT.read_text(encoding="utf-8"), texts(str(file.path)))


@lru_cache(maxsize=CACHED_COUNTS)
def _tokens(file: File, tokenizer: File | None, enough: int) -> tuple[int, int] | None:
    """Tokens of the texts, counted until there are `enough`, and the largest; None where the model has no
    tokenizer.json."""
    tokens, total, largest = texts(str(file.path)), 0, -1
    if tokenizer is None:
        return None
    for start in range(0, len(tokens), COUNTED):
        counted = token_lengths.counted(
            tokenizer.path.parent, [text[: enough * COUNTED] for text in tokens[start : start + COUNTED]]
        )
        if counted is None:
            return None
        for length, top in counted:
            total, largest = total + length, max(largest, top)
        if total >= enough:
            break
    return total, largest
