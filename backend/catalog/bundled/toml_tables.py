"""Reads the bundled TOML tables into typed rows; what was edited wrongly by hand is one sentence that names the row.

Knows nothing of what the rows mean.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from backend.domain.errors import InvalidCatalog
from backend.domain.validation import first_flaw

Row = TypeVar("Row", bound=BaseModel)


def read(path: Path, table: str, model: type[Row], key: str) -> list[Row]:
    """The rows of `[[table]]` in the file's order, `key` unique.

    Raises InvalidCatalog, naming the first wrong row by its key, or by its number where it has none.
    """
    rows = document(path).get(table)
    if not isinstance(rows, list) or not rows:
        raise InvalidCatalog(f"{path.name} has no [[{table}]] rows: restore the file.")
    # Parse row by row, so that the first wrong one is named.
    keys: set[str] = set()
    parsed = []
    for number, row in enumerate(rows, 1):
        parsed.append(_row(path, row, model, key, number))
        name = getattr(parsed[-1], key)
        if name in keys:
            raise InvalidCatalog(f"{path.name} has two rows with {key} `{name}`: remove or rename one.")
        keys.add(name)
    return parsed


def document(path: Path) -> dict[str, Any]:
    """The whole file. Raises InvalidCatalog where it is missing or not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidCatalog(f"{path} cannot be read ({error.strerror}): restore the file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidCatalog(f"{path.name} is not valid TOML ({error}): correct it or restore the file.") from None


def _row(path: Path, row: Any, model: type[Row], key: str, number: int) -> Row:
    try:
        return model.model_validate(row)
    except ValidationError as error:
        name = row.get(key) if isinstance(row, dict) else None
        what = f"`{name}`" if isinstance(name, str) else f"number {number}"
        raise InvalidCatalog(first_flaw(error).sentence_at(f"{path.name}, row {what}")) from None
