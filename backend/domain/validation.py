"""Turns pydantic's first complaint about a document into a sentence.

Which field, what is wrong, what to write instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from pydantic import AfterValidator, BaseModel, ValidationError

from backend.domain.errors import Unreadable, WhetstoneError, WrittenByNewer

Row = TypeVar("Row")
Read = TypeVar("Read")
Model = TypeVar("Model", bound=BaseModel)

BUCKET = r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?"
"""A valid bucket name of S3, which also requires at least three characters."""
LONGEST = 120
"""Characters of a field's name that a sentence repeats: it may be somebody's typing."""


def _at_least(count: int, unit: str) -> str:
    return "it must not be empty" if count == 1 else f"it needs at least {count} {unit}"


_KINDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "string": "text",
    "list": "a list",
    "tuple": "a list",
    "dict": "a mapping",
    "model": "a mapping",
    "date": "a day such as 2026-01-31",
    "datetime": "a time such as 2026-01-31T12:00:00Z",
}
_BOUNDS: dict[str, Callable[[dict[str, Any]], str]] = {
    "greater_than": lambda bound: f"it must be above {bound['gt']:,.10g}",
    "greater_than_equal": lambda bound: f"it must be at least {bound['ge']:,.10g}",
    "less_than": lambda bound: f"it must be below {bound['lt']:,.10g}",
    "less_than_equal": lambda bound: f"it must be at most {bound['le']:,.10g}",
    "finite_number": lambda _: "it must be a finite number",
    "int_from_float": lambda _: "it must be a whole number",
    "literal_error": lambda bound: f"it must be {bound['expected'].replace(chr(39), '')}",
    "string_too_short": lambda bound: _at_least(bound["min_length"], "characters"),
    "string_too_long": lambda bound: f"it may have at most {bound['max_length']} characters",
    "too_short": lambda bound: _at_least(bound["min_length"], "entries"),
    "too_long": lambda bound: f"it may have at most {bound['max_length']} entries",
    "union_tag_invalid": lambda bound: (
        f"`{bound['tag']}` is unknown; known are {bound['expected_tags'].replace(chr(39), '')}"
    ),
    "value_error": lambda bound: str(bound["error"]),
}


class Flaw(NamedTuple):
    """A flaw of a document.

    `field` is dotted, empty for the whole; `problem` continues after its name, without a full stop.
    """

    field: str
    problem: str

    def sentence(self, whole: str) -> str:
        """Return the sentence, such as `steps` of the recipe is wrong: it must be a list."""
        return (
            f"`{self.field}` of {whole} {self.problem}."
            if self.field
            else f"{whole[:1].upper()}{whole[1:]} {self.problem}."
        )

    def sentence_at(self, place: str) -> str:
        """Return the sentence after a place, such as Preset number 2: `goal` is missing: add it."""
        return f"{place}: {f'`{self.field}`' if self.field else 'it'} {self.problem}."


def first_flaw(error: ValidationError, unnamed: Collection[str] = ()) -> Flaw:
    """Return the first flaw.

    `unnamed` are parts of a field's path that are in no document: tags that pydantic tells unions by.
    """
    first = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(str(part) for part in first["loc"] if part not in unnamed)
    match first["type"]:
        case "missing":
            problem = "is missing: add it"
        case "extra_forbidden":
            problem = "is unknown: remove it or correct its spelling"
        case kind:
            problem = f"is wrong: {_requirement(kind, first.get('ctx', {}), first['msg'])}"
    return Flaw(field if len(field) <= LONGEST else f"{field[:LONGEST]}…", problem.rstrip("."))


def validate_fields(model: type[Model], fields: dict[str, Any], raised: type[WhetstoneError]) -> Model:
    """Return the fields as that model. Raises `raised` for the first flaw, with its field."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        flaw = first_flaw(error)
        raise raised(f"{flaw.problem}.", field=flaw.field) from None


def _requirement(kind: str, bound: dict[str, Any], words: str) -> str:
    """Return what the field must be; pydantic's own words of a rule that has none here."""
    if kind in _BOUNDS:
        return _BOUNDS[kind](bound)
    family = kind.partition("_")[0]  # of int_parsing, model_attributes_type, date_from_datetime_parsing
    return (
        f"it must be {_KINDS[family]}"
        if family in _KINDS
        else f"{words[:1].lower()}{words[1:]}".replace("input should", "it must")
    )


NEWER = {
    "extra_forbidden": "it has fields that this version does not know",
    "union_tag_invalid": "it has a kind that this version does not know",
    "literal_error": "it has a value that this version does not know",
}
"""pydantic's type of an error -> what a newer version may have added to a document of the same schema."""


def read_stored(model: type[Model], document: str | bytes, whole: str) -> Model:
    """Return a document of our own as that model. `whole` names it in a sentence, such as "the preset".

    Raises WrittenByNewer where it has what this version does not know, else Unreadable.
    """
    try:
        return model.model_validate_json(document)
    except ValidationError as error:
        raise unreadable(error, whole) from None


def unreadable(error: ValidationError, whole: str) -> Unreadable:
    """Return the error for a stored document that pydantic refused.

    One unknown part is enough: it may explain all other flaws.
    """
    for details in error.errors(include_url=False, include_input=False):
        if details["type"] in NEWER:
            field = ".".join(map(str, details["loc"]))[:LONGEST]
            return WrittenByNewer(
                f"{whole[:1].upper()}{whole[1:]} was written by a newer version of Whetstone "
                f"({NEWER[details['type']]}: `{field}`): update this checkout to read it. It stays as it is."
            )
    return Unreadable(first_flaw(error).sentence(whole))


def matching(pattern: str, words: str) -> AfterValidator:
    """Return a validator of a text field that must match all of `pattern`.

    `words` describe it in place of the pattern.
    """

    def check(value: str) -> str:
        if re.fullmatch(pattern, value) is None:
            raise ValueError(words)
        return value

    return AfterValidator(check)


def readable_rows(rows: Iterable[Row], read: Callable[[Row], Read]) -> list[Read]:
    """Return what `read` makes of each row, without rows that cannot be read: one bad row hides no other."""
    documents = []
    for row in rows:
        with suppress(ValidationError, Unreadable):
            documents.append(read(row))
    return documents
