"""A serve job with a real vLLM: it says where it answers, is asked, stops in good order and leaves no process
behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.domain.jobs.jobs import JobState
from backend.domain.recipe.recipe import Serving
from backend.service import Workspace
from backend.service.jobs import jobs, supervisors
from backend.service.serving import playground, serve
from backend.service.serving.gateway import KeysAndServers
from backend.service.serving.playground import PromptTooLong, Question, Timing
from tests.homes import eventually, processes_of, until_ended, until_phase

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]


def test_servers_are_asked_and_stopped_and_nothing_is_left(home: Workspace) -> None:
    spec = serve.prepare(home, ["starter"])
    eager = tuple(variant.model_copy(update={"serving": Serving(enforce_eager=True)}) for variant in spec.variants)
    job = jobs.submit(home, spec.model_copy(update={"variants": eager}), "Serve starter for the playground")
    supervisors.ensure_running(home)
    assert until_phase(home, job.id, "serve").progress == 1.0
    assert serve.start(home, ["starter"]).id == job.id

    (served,) = serve.endpoints(home, job.id)
    ((server,),) = KeysAndServers(home)()[1:]
    assert (f"{server.base}/v1", server.key) == (served.url, Path(str(served.key_file)).read_text())
    timing = Timing()
    pieces = list(playground.stream(served.url, served.served_name, Question("def main():\n", max_tokens=24), timing))
    assert len(pieces) > 1 and timing.tokens == 24 and timing.first_s is not None
    with pytest.raises(PromptTooLong, match="context of 2048 tokens"):
        list(playground.stream(served.url, served.served_name, Question("x " * 3000), Timing()))
    eventually("the tokens counted", lambda: jobs.latest_progress(home, job.id).data.get("generated_tokens") == 24)

    assert processes_of(home) != []
    jobs.cancel(home, job.id)
    ended = until_ended(home, job.id)
    assert (ended.state, ended.error) == (JobState.SUCCEEDED, None)
    assert str(ended.result["summary"]).startswith("Stopped on request. 24 tokens were generated in ")
    eventually("no process left", lambda: processes_of(home) == [])
    assert serve.find_active(home, ["starter"]) is None
