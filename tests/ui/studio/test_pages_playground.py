"""Playground in every state: what to choose, servers waiting, loading, up, stopped, failed, and every way an answer
fails."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from app import url_parameters
from app.playground import chat, pair_choice
from app.playground.chat import Reply, Turn
from app.playground.pair_choice import Servable
from backend.domain.errors import EndpointUnreachable, RequestError
from backend.domain.jobs.jobs import Event, JobKind, JobState
from backend.service import Workspace
from backend.service.jobs import jobs
from backend.service.jobs.jobs import JobView
from backend.service.serving import playground, serve
from backend.service.serving.playground import PromptTooLong, Question, Timing
from tests import studio
from tests.endpoints_in_service import in_service
from tests.fakes.running import ask, running
from tests.fakes.sagemaker.account import Account, Fault
from tests.fakes.sagemaker.pointed import aws
from tests.helpers.deployment_cases import DEPLOYMENT

__all__ = ["aws"]


def make_artifact(home: Workspace) -> str:
    """An artifact of the starter; its files are not there."""
    return studio.artifact(home, studio.optimize_job(home, JobState.SUCCEEDED), studio.optimize_spec(home).model)


def serve_job(home: Workspace, *sources: str, state: JobState = JobState.RUNNING, **changes: object) -> JobView:
    title = f"Serve {' and '.join(sources)} for the playground"
    return studio.put(home, studio.serve_spec(*sources), title, state, **changes)  # type: ignore[arg-type]


def answers(at: AppTest) -> list[str]:
    return [
        element.proto.body for element in at.get("html") if not element.proto.body.startswith(("<style>", "<script>"))
    ]


# Choosing


def test_without_artifacts_one_model_answers_alone_and_a_link_leads_to_a_second(studio_home: Workspace) -> None:
    at = studio.open_page("playground")
    assert at.selectbox(key="playground_original").value == "starter"
    assert at.selectbox(key="playground_optimized").value == url_parameters.NOTHING
    assert at.button(key="playground_start").label == "Start it" and at.chat_input[0].disabled
    assert "Optimize it" in studio.links(at)
    assert "Start the servers first" in studio.says(at)


def test_the_newest_artifact_stands_beside_its_original(studio_home: Workspace) -> None:
    artifact = make_artifact(studio_home)
    at = studio.open_page("playground")
    assert at.selectbox(key="playground_original").value == "starter"
    assert at.selectbox(key="playground_optimized").value == artifact
    assert at.button(key="playground_start").label == "Start both"
    labels = " ".join(at.selectbox(key="playground_optimized").options)
    assert "w8a8 of starter · 13 MB" in labels


def test_the_pair_comes_from_the_address_and_goes_back_into_it(studio_home: Workspace) -> None:
    artifact = make_artifact(studio_home)
    at = studio.open_page("playground", original=artifact, optimized="starter")
    assert at.selectbox(key="playground_original").value == artifact
    assert at.selectbox(key="playground_optimized").value == "starter"
    at.selectbox(key="playground_original").select("starter").run()
    studio.check(at)
    assert at.query_params["original"] == "starter"
    assert at.selectbox(key="playground_optimized").value == artifact


@pytest.mark.parametrize("unknown", ["a-000000000000", "<b>x</b>", "é" * 4000, "../../etc"])
def test_an_unknown_variant_in_the_address_is_one_sentence(studio_home: Workspace, unknown: str) -> None:
    at = studio.open_page("playground", original=unknown)
    assert len(at.warning) == 1 and "is not known here" in at.warning[0].value
    assert at.selectbox(key="playground_original").value == "starter"


def test_a_url_is_typed_where_it_is_chosen(studio_home: Workspace) -> None:
    at = studio.open_page("playground", original="url", optimized="nothing")
    at.text_input(key="playground_url_original").set_value("localhost:80").run()
    studio.check(at)
    assert "not an address" in at.error[0].value and at.chat_input[0].disabled
    at.text_input(key="playground_url_original").set_value("http://127.0.0.1:1").run()
    assert not at.error and not at.chat_input[0].disabled
    assert at.query_params["original"] == "http://127.0.0.1:1"


def test_an_endpoint_of_sagemaker_is_asked_and_its_failures_are_a_sentence(
    studio_home: Workspace, aws: Account
) -> None:
    source = f"sagemaker:{in_service(aws, DEPLOYMENT, split=13)}@us-east-1"
    at = studio.open_page("playground", original=source, optimized="nothing")
    assert at.text_input(key="playground_url_original").value == source and "One server is selected" in studio.says(at)
    at.chat_input[0].set_value("What comes next?").run()
    studio.check(at)
    assert "four, five, six," in answers(at)[-1]
    for container, fault, words in (
        (
            {"breaks": {"after": 2, "kind": "ModelStreamError", "ErrorCode": "StreamBroken", "Message": ""}},
            None,
            "StreamBroken",
        ),
        ({"breaks": {"after": 2}}, None, "broke off its answer"),
        ({}, Fault("ThrottlingException", times=9), "throttles the requests"),
        ({}, Fault("ExpiredTokenException", times=9), "credentials in use have expired"),
    ):
        aws.tables["container"], aws.faults[:] = container, [fault] if fault else []
        at.chat_input[0].set_value("And then?").run()
        studio.check(at)
        assert words in at.error[-1].value.replace("\\", "")


def choice(source: str, parent: str) -> Servable:
    return Servable(source, source, source, parent)


FAMILY = [choice("m", "m"), choice("a-2", "m"), choice("a-1", "m"), choice("n", "n"), choice("a-3", "n")]


def test_partners_are_of_the_same_model_artifacts_first() -> None:
    assert [result.source for result in pair_choice.partners(FAMILY, "m")] == ["a-2", "a-1"]
    assert [result.source for result in pair_choice.partners(FAMILY, "a-1")] == ["a-2", "m"]
    assert pair_choice.partners(FAMILY, "url") == FAMILY


def test_the_suggestion_is_the_newest_artifact_whose_model_is_there() -> None:
    assert pair_choice.suggestion(FAMILY, ["a-gone", "a-3", "a-2"]) == ("n", "a-3")
    assert pair_choice.suggestion(FAMILY, []) == ("m", url_parameters.NOTHING)
    assert pair_choice.suggestion([choice("a-9", "gone")], ["a-9"]) == ("a-9", url_parameters.NOTHING)
    assert pair_choice.suggestion([], []) == (pair_choice.URL, url_parameters.NOTHING)


# Servers


@pytest.mark.with_engines
def test_one_job_is_started_and_every_session_sees_it(studio_home: Workspace, serve_python: Path) -> None:
    at = studio.open_page("playground")
    at.button(key="playground_start").click().run()
    studio.check(at)
    (job,) = jobs.listing(studio_home, kinds=[JobKind.SERVE])
    assert job.title == "Serve starter for the playground"
    assert at.query_params["original"] == "starter" and at.query_params["optimized"] == "nothing"
    other = studio.open_page("playground")
    assert not [button for button in other.button if button.key == "start"], "another session sees the same job"
    assert job.title in studio.says(other)


def test_what_cannot_be_started_is_one_sentence(
    studio_home: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = make_artifact(studio_home)
    at = studio.open_page("playground")
    at.button(key="playground_start").click().run()
    studio.check(at)
    assert len(at.error) == 1 and f"The files of {artifact} are no longer" in at.error[0].value.replace("\\", "")
    assert jobs.count(studio_home, kinds=[JobKind.SERVE]) == 0


def test_a_queued_job_says_what_it_waits_for_and_can_stop_other_servers(studio_home: Workspace) -> None:
    other = serve_job(studio_home, "starter-draft", events=[studio.serving(("starter-draft", "http://127.0.0.1:1/v1"))])
    serve_job(studio_home, "starter", state=JobState.QUEUED)
    at = studio.open_page("playground")
    assert "It waits for **Serve starter-draft for the playground**" in studio.says(at)
    at.button(key=f"playground_stop-{other.id}").click().run()
    studio.check(at)
    assert jobs.show(studio_home, other.id).cancel_requested


def test_loading_shows_the_bar_and_the_time_left_by_earlier_starts(studio_home: Workspace) -> None:
    serve_job(studio_home, "starter", state=JobState.SUCCEEDED, result='{"ready_seconds": {"starter": 4200}}')
    loading = Event(kind="phase", phase="start", message="Loading starter (1 of 1)", progress=0.0)
    job = serve_job(studio_home, "starter", events=[loading])
    at = studio.open_page("playground")
    text = studio.says(at)
    assert "Loading starter (1 of 1) · 0%" in text
    assert re.search(r"Ready in about 4,(1\d\d|200) s, as in earlier starts here\.", text), text
    assert at.chat_input[0].disabled and "Phases and log" in studio.links(at)
    at.button(key=f"playground_cancel-{job.id}").click().run()
    assert jobs.show(studio_home, job.id).cancel_requested
    assert "Stopping the servers" in studio.says(studio.open_page("playground"))


def test_servers_that_are_up_say_who_waits_and_stop_at_a_click(studio_home: Workspace) -> None:
    job = serve_job(studio_home, "starter", events=[studio.serving(("starter", "http://127.0.0.1:1/v1"))])
    assert "Other jobs wait" in studio.says(studio.open_page("playground"))
    studio.optimize_job(studio_home)
    at = studio.open_page("playground")
    assert "**1 job waits for them to stop.** They stop by themselves after 15 idle minutes" in studio.says(at)
    assert not at.chat_input[0].disabled
    at.button(key=f"playground_stop-{job.id}").click().run()
    assert jobs.show(studio_home, job.id).cancel_requested
    assert at.chat_input[0].disabled


def test_stopped_servers_are_no_failure_and_can_be_started_again(studio_home: Workspace) -> None:
    serve_job(
        studio_home,
        "starter",
        state=JobState.SUCCEEDED,
        result='{"summary": "Stopped on request. 7 tokens were generated."}',
    )
    at = studio.open_page("playground")
    assert "Stopped on request. 7 tokens were generated." in studio.says(at) and not at.error
    assert at.button(key="playground_start").label == "Start it again"


def test_a_failed_start_is_its_sentence_and_the_way_to_the_log(studio_home: Workspace) -> None:
    serve_job(studio_home, "starter", state=JobState.FAILED, error="The model server did not start: no <b>memory</b>.")
    at = studio.open_page("playground")
    assert len(at.error) == 1 and "no \\<b\\>memory" in at.error[0].value
    assert "See the log" in studio.links(at)
    serve_job(studio_home, "starter", state=JobState.CANCELLED)
    assert "Loading was cancelled" in studio.says(studio.open_page("playground"))


def test_the_page_of_a_serve_job_tells_its_end_and_leads_back(studio_home: Workspace) -> None:
    job = serve_job(studio_home, "starter", "b", state=JobState.SUCCEEDED, result='{"summary": "Stopped on request."}')
    at = studio.open_page("job", id=job.id)
    assert "Stopped on request." in studio.says(at)
    assert "Playground" in studio.links(at)


# Asking


def both(at: AppTest, tokens: int = 5, prompt: str = "Why?") -> AppTest:
    at.number_input(key="playground_tokens").set_value(tokens)
    at.chat_input[0].set_value(prompt).run()
    studio.check(at)
    return at


def test_two_answers_stand_side_by_side_with_their_differences_and_times(studio_home: Workspace) -> None:
    with running("plain_server.py") as first, running("plain_server.py", "--word", "v") as second:
        at = both(studio.open_page("playground", original=first, optimized=second))
    left, right = answers(at)
    assert ">w0 w1 w2 w3 w4</mark>" in left and ">v0 v1 v2 v3 v4</mark>" in right
    text = studio.says(at)
    assert text.count("first token after") == 2 and text.count("· 5 tokens ·") == 2
    assert "They differ from the first word on; 5 of 5 words on the left" in text
    assert "are no measurement" in text


def test_identical_answers_are_said_to_be_and_not_marked(studio_home: Workspace) -> None:
    with running("plain_server.py") as url:
        at = both(studio.open_page("playground", original=url, optimized=f"{url}/v1"))
    assert "The answers are identical" in studio.says(at)
    assert len(answers(at)) == 2 and "<mark" not in "".join(answers(at))


def test_an_answer_of_html_is_shown_as_text(studio_home: Workspace) -> None:
    with running("plain_server.py", "--word", "<img src=x onerror=y>**b**") as url:
        at = both(studio.open_page("playground", original=url, optimized="nothing"), tokens=1)
    assert "&lt;img src=x onerror=y&gt;**b**0" in answers(at)[0]


def test_the_servers_of_a_job_are_asked(studio_home: Workspace) -> None:
    with running("plain_server.py") as url:
        serve_job(studio_home, "starter", events=[studio.serving(("starter", url))])
        at = both(studio.open_page("playground"))
    assert "w0 w1 w2 w3 w4" in answers(at)[0] and "**starter**" in studio.says(at)


def test_an_example_and_another_mode_begin_a_chat_and_earlier_ones_stay_folded(studio_home: Workspace) -> None:
    with running("plain_server.py") as url:
        at = both(studio.open_page("playground", original=url, optimized="nothing"))
        at.number_input(key="playground_tokens").set_value(4)
        at.button(key="playground_example-Explain").click().run()
        at.radio[0].set_value(chat.CONTINUE).run()
        both(at, tokens=3, prompt="class Stack:")
        studio.check(at)
    first, second, third = reversed(at.session_state[chat.TURNS])
    assert second.question.prompt == chat.CHATS["Explain"] and third.question.prompt == "class Stack:"
    assert len({turn.chat for turn in (first, second, third)}) == 3
    labels = [expander.label for expander in at.expander if expander.label.startswith("Earlier: ")]
    assert [label.removeprefix("Earlier: ")[:7] for label in labels] == ["Why?", "Explain"]
    assert len(answers(at)) == 3 and "w4" in answers(at)[0] and "w3" not in answers(at)[2]


def test_questions_of_a_chat_go_on_until_a_new_one_is_begun(studio_home: Workspace) -> None:
    with running("exact_server.py", "--rate", 500, "--ttft-ms", 5) as url:
        at = studio.open_page("playground", original=url, optimized="nothing")
        assert at.radio[0].value == chat.CHAT and not [each for each in at.button if each.label == "New chat"]
        both(at, tokens=3)
        both(at, tokens=3, prompt="And why?")
        (first, later) = at.session_state[chat.TURNS]
        assert first.question.prompt == "And why?" and first.chat == later.chat and later.replies[0].text
        assert chat.earlier_messages([first, later], 0, [url.removeprefix("http://")]) == [
            (turn.question.prompt, turn.replies[0].text) for turn in (later, first)
        ]
        assert chat.earlier_messages([first, later], 0, ["another"]) == []
        # the latest answer is next to the prompt, which says what a text there is
        questions = [message.markdown[0].value for message in at.chat_message]
        assert questions == ["Why?", "And why?"] and "follow-up" in at.chat_input[0].placeholder
        next(each for each in at.button if each.label == "New chat").click().run()
        assert "follow-up" not in at.chat_input[0].placeholder
        both(at, tokens=3, prompt="Something else")
    (unrelated, *_) = at.session_state[chat.TURNS]
    assert [turn for turn in at.session_state[chat.TURNS] if turn.chat == unrelated.chat] == [unrelated]


def test_the_starter_which_has_no_template_continues_code(studio_home: Workspace) -> None:
    at = studio.open_page("playground", original="starter", optimized="nothing")
    assert at.radio[0].value == chat.CONTINUE
    assert at.button(key="playground_example-A class").disabled and at.chat_input[0].disabled


def test_an_endpoint_that_does_not_answer_is_one_sentence_beside_the_other_answer(studio_home: Workspace) -> None:
    with running("plain_server.py") as url:
        at = both(studio.open_page("playground", original="http://127.0.0.1:1", optimized=url))
    assert len(at.error) == 1 and "cannot be reached" in at.error[0].value and "refused" in at.error[0].value
    assert "w0" in answers(at)[0]


def test_a_server_that_dies_in_the_middle_leaves_what_it_said(studio_home: Workspace) -> None:
    with running("broken_server.py", "--die-after", 1) as url:
        at = both(studio.open_page("playground", original=url, optimized="nothing"))
    assert len(at.error) == 1 and "broke off its answer" in at.error[0].value
    assert "the quick" in answers(at)[0]


def test_an_answer_that_was_interrupted_is_kept_and_said_to_be(studio_home: Workspace) -> None:
    at = studio.open_page("playground")
    at.session_state[chat.TURNS] = [Turn(Question("p"), [Reply("starter", "as far as"), Reply("w8a8")])]
    at.run()
    studio.check(at)
    assert ">as far as</pre>" in answers(at)[0]
    assert studio.says(at).count("Stopped before its end.") == 2 and not at.warning


# The stream itself


def streamed(url: str, model: str = "plain", **changes: object) -> tuple[str, Timing]:
    timing = Timing()
    question = Question(**{"prompt": "p", "max_tokens": 8, **changes})  # type: ignore[arg-type]
    return "".join(playground.stream(url, model, question, timing)), timing


@pytest.mark.parametrize("url", ["", "localhost:80", "http://", "http://host:port", "http://[", "file:///etc/passwd"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(RequestError, match="not an address"):
        playground.models(url)


def test_the_stream_is_timed_and_counted() -> None:
    with running("plain_server.py", "--ttft-ms", 20) as url:
        text, timing = streamed(f"{url}/v1/", playground.models(url)[0])
    assert text.count("w") == 8
    assert timing.tokens == 8
    assert timing.first_s is not None and timing.first_s >= 0.02
    assert timing.tokens_per_s is not None and timing.tokens_per_s > 0


def test_the_question_is_sent_as_asked() -> None:
    with running("broken_server.py") as url:
        streamed(url, "ok", temperature=0.5, seed=7)
        (observed,) = ask(f"{url}/seen")
    assert {name: observed[name] for name in ("prompt", "max_tokens", "temperature", "seed")} == {
        "prompt": "p",
        "max_tokens": 8,
        "temperature": 0.5,
        "seed": 7,
    }


def test_a_chat_is_asked_with_what_was_said_before() -> None:
    timing = Timing()
    question = Question("and then?", chat=True)
    with running("broken_server.py") as url:
        text = "".join(playground.stream(url, "ok", question, timing, [("who?", "me")]))
        (observed,) = ask(f"{url}/seen")
    assert text.startswith("the quick") and "prompt" not in observed and timing.tokens
    assert [(each["role"], each["content"]) for each in observed["messages"]] == [
        ("user", "who?"),
        ("assistant", "me"),
        ("user", "and then?"),
    ]


def test_a_model_without_a_template_continues_the_text_instead() -> None:
    refused = "default chat template is no longer allowed, so you must provide a chat template"
    with running("plain_server.py", "--no-chat", refused) as url:
        text, _ = streamed(url, chat=True)
    assert text.count("w") == 8


@pytest.mark.parametrize("model", ["no_continuous", "no_stream_options", "no_usage", "until_close", "four_tokens"])
def test_servers_of_other_habits_are_understood(model: str) -> None:
    with running("broken_server.py") as url:
        text, _ = streamed(url, model)
    assert text.split()[:4] == ["the", "quick", "brown", "fox"]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("close_midway", "broke off its answer"),
        ("reset_midway", "broke off its answer"),
        ("malformed_event", "broke off its answer"),
        ("malformed_chunk", "broke off its answer"),
        ("no_ending", "closed in the middle"),
        ("error_event", "broke off its answer"),
        ("close_unanswered", "cannot be reached"),
        ("http_503", "HTTP 503"),
        ("always_400", "HTTP 400"),
        ("html", "not with a stream"),
        ("no_events", "not with a stream"),
    ],
)
def test_every_way_a_stream_fails_is_one_sentence(model: str, message: str) -> None:
    with running("broken_server.py") as url, pytest.raises(EndpointUnreachable, match=message) as caught:
        streamed(url, model)
    assert "\n" not in str(caught.value) and "Errno" not in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        "This model's maximum context length is 2048 tokens. However, you requested 4000 output tokens and your "
        "prompt contains "
        "at least 1 input tokens. Please reduce the length of the input prompt or the number of requested output "
        "tokens.",
        "max_tokens must be at most max_model_len=2048",
    ],
)
def test_a_prompt_beyond_the_context_is_told_with_the_context(words: str) -> None:
    with (
        running("plain_server.py", "--refuse", words) as url,
        pytest.raises(PromptTooLong, match="context of 2048 tokens"),
    ):
        streamed(url)


def test_a_server_that_refuses_is_told_with_its_status() -> None:
    with running("plain_server.py") as url, pytest.raises(EndpointUnreachable, match="HTTP 404: no such path"):
        playground.models(f"{url}/nothing")


def test_where_servers_answer_is_told_from_their_sources() -> None:
    assert serve.is_address("https://x") and not serve.is_address("a-1") and not serve.is_address("/http://")
