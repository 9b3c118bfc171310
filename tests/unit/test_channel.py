"""Both ends of a job's channel: what a new attempt begins with, what is kept for it, and the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend import channel
from backend.channel import Channel, JobChannel
from backend.domain.errors import WorkError
from backend.domain.jobs.jobs import Event


def test_what_the_worker_says_is_what_the_studio_reads(tmp_path: Path) -> None:
    studio, worker = Channel(tmp_path / "j-1"), JobChannel(tmp_path / "j-1")
    studio.open('{"kind": "install"}')
    assert worker.spec() == {"kind": "install"} and worker.job == "j-1"
    worker.emit(Event(kind="note", message="one"))
    worker.emit(Event(kind="note", message="two"), urgent=False)
    assert studio.result() is None
    worker.result({"outcome": "succeeded"})
    assert [[event.message for event in events] for _, events in studio.segments(0)] == [["one"], ["two"]]
    assert [number for number, _ in studio.segments(1)] == [2]
    assert studio.result() == {"outcome": "succeeded"}


def test_a_new_attempt_finds_what_was_kept_and_the_log_and_nothing_else(tmp_path: Path) -> None:
    studio, worker = Channel(tmp_path / "j-1"), JobChannel(tmp_path / "j-1")
    studio.open("{}")
    for folder in (worker.output, worker.resume(), worker.resume("bits")):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"1" * 8192)
    with studio.log_sink() as sink:
        sink.write(b"first attempt\n")
    worker.result({"outcome": "failed"})
    studio.open("{}")
    assert studio.result() is None and studio.segments(0) == [] and not studio.output.exists()
    assert studio.kept_bytes() == 2 * 8192 and studio.log(tail_bytes=8) == "attempt\n"
    studio.drop_kept()
    assert studio.kept_bytes() == 0 and not worker.resume("bits").exists()


def test_a_channel_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    (tmp_path / "j-1").write_text("no folder")
    with pytest.raises(WorkError, match="j-1 cannot be written"):
        Channel(tmp_path / "j-1").open("{}")


def test_a_segment_is_one_line_an_event() -> None:
    events = [Event(kind="note", message="a\nb"), Event(kind="point", data={"x": 1.5})]
    assert channel.decode(channel.encode(events)) == events and channel.encode(events).count(b"\n") == 2
