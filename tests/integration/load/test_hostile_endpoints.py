"""Single requests and the playground against servers that send without end or JSON of another form: one sentence
each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backend.domain.errors import EndpointUnreachable
from backend.endpoint import completion, models, parse_address, send
from backend.service.serving import playground
from backend.service.serving.playground import Question, Timing, stream
from tests.fakes.running import ask as ask_json
from tests.fakes.running import running
from tests.fakes.streaming_server import WORDS

QUESTION = Question("Say the Greek letters.", max_tokens=8, chat=True)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running("streaming_server.py") as url:
        yield url


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [
        ("endlessmodels", "answers with more than 8 MiB"),
        ("deepmodels", "not with a list of models"),
        ("nomodels", "It says HTTP 404: Not Found"),
    ],
)
def test_a_list_of_models_that_is_none_is_told(server: str, mode: str, sentence: str):
    with pytest.raises(EndpointUnreachable, match=sentence):
        models(f"{server}/{mode}/v1")


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [
        ("deep", "is not JSON"),
        ("endless", "answers with more than 8 MiB"),
        ("endlesshead", "did not end|cannot be reached"),
    ],
)
def test_a_single_answer_of_another_form_is_told(server: str, mode: str, sentence: str):
    limit_s = 1.0 if mode == "endlesshead" else 60.0
    with pytest.raises(EndpointUnreachable, match=sentence):
        completion(f"{server}/{mode}/v1", {"model": "fake", "prompt": "x", "max_tokens": 1}, limit_s=limit_s)


def test_an_answer_that_only_drips_is_cut(server: str):
    place = parse_address(f"{server}/drip/v1")
    sentence = r"did not end its answer within 0.3 s"
    with (
        pytest.raises(EndpointUnreachable, match=sentence),
        send(place, "POST", place.path("chat"), body={}, whole_s=0.3) as answer,
    ):
        answer.read()


@pytest.mark.parametrize(
    "mode", ["plain", "role", "odd", "router", "pingev", "moonshot", "multi", "openend", "raw", "newparam"]
)
def test_the_playground_reads_what_real_servers_send(server: str, mode: str):
    timing = Timing()
    assert "".join(stream(f"{server}/{mode}", "fake", QUESTION, timing)) == "".join(WORDS)
    assert timing.tokens == len(WORDS)


def test_the_playground_shows_words_and_no_reasoning(server: str):
    assert "".join(stream(f"{server}/both", "fake", QUESTION, Timing())) == "".join(WORDS[len(WORDS) // 2 :])


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [
        ("errev", "The server broke off its answer: CUDA out of memory"),
        ("errev2", "The server broke off its answer: slot unavailable"),
        ("deep", "an event is not JSON"),
        ("oddchoices", "a choice is not a JSON object"),
        ("endless", "sends an answer without end"),
        ("endlessline", "sends an answer without end"),
        ("drip", "did not end its answer within 1 s|broke off its answer"),
    ],
)
def test_the_playground_ends_with_a_sentence(server: str, mode: str, sentence: str, monkeypatch: pytest.MonkeyPatch):
    if mode == "drip":  # the others are ended by what comes, however busy the machine is
        monkeypatch.setattr(playground, "WHOLE_S", 1.0)
    with pytest.raises(EndpointUnreachable, match=sentence):
        list(stream(f"{server}/{mode}", "fake", QUESTION, Timing()))


def test_the_newer_name_of_the_limit_is_remembered_for_single_requests(server: str):
    url = f"{server}/newparam"
    before = len(ask_json(f"{url}/seen"))
    for _ in range(2):
        list(stream(url, "fake", QUESTION, Timing()))
    observed = ask_json(f"{url}/seen")[before:]
    assert sum("max_tokens" in body for body in observed) <= 1 and "max_completion_tokens" in observed[-1]
