"""One load: its key, its words, its order, and the one form in which a document has it."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from backend.domain.load.load import Load


@pytest.mark.parametrize(
    ("load", "key", "words", "cell"),
    [
        (Load("closed", 1), "closed-1", "1 stream", 1),
        (Load("closed", 4.0), "closed-4", "4 streams", 4),
        (Load("closed", 1024), "closed-1024", "1,024 streams", 1024),
        (Load("rate", 0.125), "rate-0.125", "0.125 requests/s", "0.125 requests/s"),
        (Load("ramp", 20), "ramp-20", "up to 20 requests/s", "up to 20 requests/s"),
        (Load("trace"), "trace", "the trace", "the trace"),
        (Load("burst"), "burst", "all at once", "all at once"),
    ],
)
def test_a_load_has_a_key_and_words(load: Load, key: str, words: str, cell: int | str) -> None:
    assert (load.key, load.words, load.cell) == (key, words, cell)
    adapter = TypeAdapter(Load)
    assert adapter.validate_json(adapter.dump_json(load)) == load


def test_loads_rise_by_their_number_and_are_the_same_however_it_is_written() -> None:
    assert sorted([Load("rate", 10), Load("rate", 9), Load("rate", 2.5)]) == [
        Load("rate", 2.5),
        Load("rate", 9),
        Load("rate", 10),
    ]
    assert {Load("rate", 8.0): 1}[Load("rate", 8)] == 1
    assert TypeAdapter(Load).dump_python(Load("closed", 4.0), mode="json") == {"mode": "closed", "value": 4}


def test_another_mode_is_refused() -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Load).validate_python({"mode": "open", "value": 1})
