"""Playground: two endpoints side by side, and every way an endpoint can fail to answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app import playground as words
from backend.domain.errors import EndpointUnreachable, RequestError
from backend.service import Workspace, playground
from backend.service.playground import Timing
from tests import studio
from tests.fakes.running import running


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    with studio.home(tmp_path / "home", monkeypatch) as opened:
        studio.supervisor(opened)
        yield opened


def test_an_empty_playground_says_what_will_stand_there(home: Workspace) -> None:
    at = studio.open_page("playground")
    assert "Both answers will stand here" in at.info[0].value
    assert at.button(key="answer").disabled


def test_two_answers_stand_side_by_side_with_their_times(home: Workspace) -> None:
    with running("plain_server.py") as first, running("plain_server.py", "--word", "v") as second:
        at = studio.open_page("playground", url1=first, url2=second)
        at.number_input(key="playground_tokens").set_value(5)
        at.button(key="answer").click().run()
    studio.check(at)
    assert [code.value for code in at.code] == ["w0 w1 w2 w3 w4 ", "v0 v1 v2 v3 v4 "]
    said = studio.says(at)
    assert said.count("first token after") == 2
    assert "tokens/s" in said
    assert "The answers have their first 0 words in common" in said


def test_an_endpoint_that_does_not_answer_is_one_sentence(home: Workspace) -> None:
    at = studio.open_page("playground", url1="http://127.0.0.1:1", url2="ftp://x")
    at.button(key="answer").click().run()
    studio.check(at)
    assert "Nothing usable answers" in at.error[0].value
    assert "is not an address" in at.error[1].value


@pytest.mark.parametrize("url", ["", "localhost:80", "http://", "http://host:port", "http://[", "file:///etc/passwd"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(RequestError, match="not an address"):
        playground.models(url)


def test_the_stream_is_timed_and_counted() -> None:
    with running("plain_server.py", "--ttft-ms", 20) as url:
        timing = Timing()
        model = playground.models(f"{url}/v1/")[0]
        pieces = list(playground.stream(url, model, "p", max_tokens=8, temperature=0.0, timing=timing))
    assert "".join(pieces).count("w") == 8
    assert timing.tokens == 8
    assert timing.first_s is not None and timing.first_s >= 0.02
    assert timing.tokens_per_s is not None and timing.tokens_per_s > 0


def test_a_server_that_refuses_is_told_with_its_status() -> None:
    with running("plain_server.py") as url, pytest.raises(EndpointUnreachable, match="HTTP 404"):
        playground.models(f"{url}/nothing")


def test_where_two_answers_part() -> None:
    assert "same, character by character" in words.difference("a b", "a b")
    assert "differ in spaces" in words.difference("a  b", "a b")
    assert "first 2 words in common, of 3 and 4" in words.difference("a b c", "a b d e")
    assert "first 0 words" in words.difference("", "a")


def test_an_answer_of_one_token_has_no_rate() -> None:
    assert Timing(first_s=0.1, total_s=0.1, tokens=1).tokens_per_s is None
    assert "tokens/s unknown" in words.speed(Timing(first_s=0.1, total_s=0.2))
