"""Both ends of a job's channel: what a new attempt begins with, what is kept for it, and the log."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from backend import channel
from backend.channel import Channel, ChannelDamaged, JobChannel, Result
from backend.domain.errors import WorkError
from backend.domain.jobs.jobs import Event


def test_what_the_worker_says_is_what_the_studio_reads(tmp_path: Path) -> None:
    studio, worker = Channel(tmp_path / "j-1"), JobChannel(tmp_path / "j-1" / "1")
    studio.open('{"kind": "install"}')
    assert worker.spec() == {"kind": "install"} and worker.job == "j-1"
    worker.emit(Event(kind="note", message="one"))
    worker.emit(Event(kind="note", message="two"), urgent=False)
    assert studio.result() is None
    worker.result({"outcome": "succeeded"})
    assert [[event.message for event in events] for _, events in studio.segments(0)] == [["one"], ["two"]]
    assert [number for number, _ in studio.segments(1)] == [2]
    assert studio.result() == Result(outcome="succeeded")


def test_a_new_attempt_finds_what_was_kept_and_nothing_else_and_the_log_is_of_all(tmp_path: Path) -> None:
    studio, worker = Channel(tmp_path / "j-1"), JobChannel(tmp_path / "j-1" / "1")
    studio.open("{}")
    for folder in (worker.output, worker.resume(), worker.resume("bits")):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"1" * 8192)
    with studio.log_sink() as sink:
        sink.write(b"first attempt\n")
    worker.result({"outcome": "failed"})
    second, again = Channel(tmp_path / "j-1", 2), JobChannel(tmp_path / "j-1" / "2")
    second.open("{}")
    assert (
        second.result() is None
        and second.segments(0) == []
        and not second.output.exists()
        and not studio.output.exists()
    )
    assert second.resume_bytes() == 2 * 8192 and (again.resume("bits") / "file").exists()
    with second.log_sink() as sink:
        sink.write(b"second\n")
    assert second.log() == "first attempt\nsecond\n" and second.log(tail_bytes=10) == "pt\nsecond\n"
    second.drop_resume()
    assert second.resume_bytes() == 0 and not again.resume("bits").exists()


def test_a_worker_that_was_thought_gone_cannot_speak_for_the_next_attempt(tmp_path: Path) -> None:
    zombie = JobChannel(tmp_path / "j-1" / "1")
    Channel(tmp_path / "j-1").open("{}")
    second = Channel(tmp_path / "j-1", 2)
    second.open("{}")
    with suppress(WorkError):
        zombie.emit(Event(kind="note", message="late"))
        zombie.result({"outcome": "succeeded", "document": {}})
    assert second.result() is None and second.segments(0) == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("events/00000001.jsonl", b'{"kind": "note", "mess'),
        ("events/00000001.jsonl", b'{"at": "2026-01-01T00:00:00Z", "kind": "progress", "progress": 7}'),
        ("events/00000001.jsonl", b"\xff\xfe"),
        ("result.json", b'{"outcome": "succ'),
        ("result.json", b"[]"),
        ("result.json", b'{"outcome": "succeeded", "document": [1]}'),
        ("result.json", b'{"document": {}}'),
    ],
)
def test_what_no_worker_writes_is_damage_that_names_the_file(tmp_path: Path, name: str, content: bytes) -> None:
    studio = Channel(tmp_path / "j-1")
    studio.open("{}")
    (tmp_path / "j-1" / "1" / name).write_bytes(content)
    with pytest.raises(ChannelDamaged, match=name):
        (studio.segments(0), studio.result())


def test_a_channel_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    (tmp_path / "j-1").write_text("no folder")
    with pytest.raises(WorkError, match="j-1/1 cannot be written"):
        Channel(tmp_path / "j-1").open("{}")


def test_a_segment_is_one_line_an_event() -> None:
    events = [Event(kind="note", message="a\nb"), Event(kind="point", data={"x": 1.5})]
    assert channel.decode(channel.encode(events)) == events and channel.encode(events).count(b"\n") == 2
