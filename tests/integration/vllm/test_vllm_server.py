"""A real vLLM server: answers, counts, drafts, fails in one sentence, uses a moved compile cache, leaves nothing
behind."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from backend.domain.errors import ServerFailed
from backend.domain.evaluation.document import Speculation, Variant
from backend.domain.evaluation.evidence import draft_counts
from backend.domain.evaluation.evidence.findings import findings
from backend.domain.evaluation.evidence.schema import failed_findings
from backend.domain.jobs.progress import NoProgress
from backend.domain.load.load import Load
from backend.domain.load.records import LoadPlan
from backend.domain.recipe.recipe import Serving
from backend.domain.workload.workload import parse_workload
from backend.evaluate.load import run_level
from backend.evaluate.quality.token_match import token_mismatch
from backend.processes import list_tree
from backend.serving import compile_cache, compile_key
from backend.serving.vllm import VllmServer
from backend.serving.vllm_plugin.whetstone_ngrams import ON_CPU, Looking
from backend.settings import ASSETS, PLUGIN
from backend.worker.measuring import lossless
from backend.worker.measuring.evidence import read_config
from tests import live_processes, simulated
from tests.tiny import tiny_llama

pytestmark = [pytest.mark.campaign, pytest.mark.vllm, pytest.mark.timeout(600)]


def complete(server: VllmServer, prompt: str | list[list[int]], tokens: int, **options: Any) -> dict[str, Any]:
    body = {
        "model": server.served_name,
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        **options,
    }
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {server.key}"}
    request = urllib.request.Request(f"{server.url}/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        parsed: dict[str, Any] = json.loads(answer.read())
    return parsed


def eager(model: Path, **settings: Any) -> Variant:
    serving = Serving(enforce_eager=True, **settings.pop("serving", {}))
    return Variant(name="eager model", source="m", kind="model", model_path=str(model), serving=serving, **settings)


def test_a_server_answers_and_counts_what_it_did(vllm_server: VllmServer) -> None:
    before = vllm_server.metrics()
    answer = complete(vllm_server, "def main():", 12)
    after = vllm_server.metrics()
    assert answer["usage"]["completion_tokens"] == 12
    assert after["generation_tokens"] - before["generation_tokens"] == 12
    assert after["prompt_tokens"] - before["prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert "drafted_tokens" not in after
    assert vllm_server.started_seconds > 0
    assert vllm_server.peak_rss_bytes > 500 << 20


@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions", "/invocations", "/tokenize", "/metrics"])
def test_nobody_is_answered_without_its_key_which_no_command_line_shows(vllm_server: VllmServer, path: str) -> None:
    request = urllib.request.Request(vllm_server.url.removesuffix("/v1") + path, b"{}")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(request, timeout=30)
    tree = list_tree(vllm_server.pid)
    assert tree and not [each.pid for each in tree if vllm_server.key in " ".join(live_processes.command(each))]
    assert vllm_server.key == vllm_server.key_file.read_text() and vllm_server.key not in vllm_server.log.read_text()


def test_prompts_that_are_read_in_parts_may_have_seeds(vllm_server: VllmServer) -> None:
    """More tokens than one step of the server reads: without the plugin's mend the server ends."""
    many = [[3 + (row * 7 + place) % 900 for place in range(400)] for row in range(24)]
    together = complete(vllm_server, many, 4, temperature=1, seed=5)["choices"]
    assert len(together) == len(many)
    assert complete(vllm_server, "import os", 4)["usage"]["completion_tokens"] == 4


def test_it_listens_on_loopback_only(vllm_server: VllmServer) -> None:
    port = int(vllm_server.url.split(":")[2].split("/")[0])
    listening = {
        result.laddr
        for process in live_processes.children()
        for result in live_processes.connections(process)
        if result.status == psutil.CONN_LISTEN
    }
    assert ("127.0.0.1", port) in listening
    assert {address.ip for address in listening} == {"127.0.0.1"}


def test_vllm_reads_the_tokens_of_its_model_and_no_others(
    vllm_server: VllmServer, starter_target: Path, tmp_path: Path
) -> None:
    assert token_mismatch(vllm_server.url, vllm_server.served_name, starter_target) is None
    other = tiny_llama(tmp_path / "other")
    why = token_mismatch(vllm_server.url, vllm_server.served_name, other)
    assert why is not None and ("as another text" in why or "HTTP 400" in why)
    missing = token_mismatch(vllm_server.url, "no-such-model", starter_target)
    assert missing is not None and "HTTP 404" in missing


def test_a_draft_of_another_shape_drafts_and_changes_no_greedy_token(
    vllm_server: VllmServer, drafted_server: VllmServer
) -> None:
    plain = complete(vllm_server, "import os\n\ndef", 24)["choices"][0]["text"]
    assert complete(drafted_server, "import os\n\ndef", 24)["choices"][0]["text"] == plain
    counters = drafted_server.metrics()
    assert counters["drafted_tokens"] == 4 * counters["drafts"] > 0
    assert 0 <= counters["accepted_tokens"] <= counters["drafted_tokens"]


def test_what_a_real_server_shows_proves_how_it_serves(
    vllm_server: VllmServer, drafted_server: VllmServer, starter_target: Path, starter_draft: Path
) -> None:
    """And that another recipe is not what it serves."""
    complete(drafted_server, "import os\n\ndef", 24)
    counted = {name: int(value) for name, value in drafted_server.metrics().items()}
    level = simulated.level(1, requests=1).model_copy(update={"drafting": draft_counts.count_drafting([counted], [])})
    draft = Speculation(method="draft", tokens=4, draft_path=str(starter_draft))
    request, fewer = (
        eager(starter_target, speculation=draft),
        eager(starter_target, speculation=draft.model_copy(update={"tokens": 2})),
    )
    result = findings(request, read_config(request), [drafted_server.evidence()], [level])
    assert {each.what for each in result if each.proven} >= {
        "quantization",
        "speculation",
        "compilation",
        "kv_cache",
        "context",
    }
    assert failed_findings(result) == []
    assert [
        each.what for each in failed_findings(findings(fewer, read_config(fewer), [drafted_server.evidence()], [level]))
    ] == ["speculation"]
    plain = findings(request, read_config(request), [vllm_server.evidence()], [])
    assert "It does not speculate: the engine started without the draft." in [
        each.words for each in failed_findings(plain)
    ]
    assert level.drafting is not None and len(level.drafting.rates) == 4


def test_a_draft_changes_no_more_greedy_answers_than_the_engine_itself(
    vllm_server: VllmServer, drafted_server: VllmServer
) -> None:
    prompts = parse_workload("code", (ASSETS / "workloads" / "starter-code.jsonl").read_bytes()).prompts
    sizes = lossless.AnswerCounts(prompts=6, tokens=16, at_once=3, sampled_prompts=0)
    speculating, plain = (
        lossless.collect_answers(server, prompts, number, chat=False, sizes=sizes)
        for number, server in enumerate((drafted_server, vllm_server))
    )
    answers = lossless.compare_answers(speculating, plain, sizes)
    assert answers.is_tested and answers.prompts == 6
    assert answers.p_value > 0.01, answers


def replayed(prompt: list[int], answer: list[int], looking: Looking) -> Iterator[tuple[int, int]]:
    """Of each step of one request alone: tokens that are proposed, and how many of them the answer has."""
    at, message = 0, answer[:1]
    while message:
        at += len(message)
        text = [*prompt, *answer[:at]]
        guessed = looking.propose([message], np.array([len(text)]), np.array([text], np.int32))[0]
        first = next(
            (place for place, pair in enumerate(zip(guessed, answer[at:], strict=False)) if pair[0] != pair[1]),
            len(guessed),
        )
        message = answer[at : at + first + 1]
        if message:
            yield len(guessed), min(first, len(answer) - at)


def test_adaptive_n_grams_propose_what_they_say_and_change_no_greedy_answer(
    vllm_server: VllmServer, starter_target: Path, serve_python: Path, vllm_cache: Path, tmp_path: Path
) -> None:
    speculation = Speculation(method="ngram_adaptive", tokens=8, proposers=str(PLUGIN))
    variant, request = eager(starter_target, speculation=speculation), {"return_token_ids": True}
    prompts = parse_workload("code", (ASSETS / "workloads" / "starter-code.jsonl").read_bytes()).prompts[:4]
    with VllmServer(
        variant, python=serve_python, log=tmp_path / "log", cache_root=vllm_cache, kv_cache_gib=0.0625
    ) as server:
        own, plain = (
            [complete(each, prompt.prompt, 48, **request)["choices"][0] for prompt in prompts]
            for each in (server, vllm_server)
        )
        counters = server.metrics()
        together = complete(server, [each["prompt_token_ids"] for each in own] * 4, 16, temperature=1, seed=3)[
            "choices"
        ]
        result = findings(variant, read_config(variant), [server.evidence()], [])
    assert [each["token_ids"] for each in own] == [each["token_ids"] for each in plain]
    looking = Looking(8, ON_CPU)
    steps = [step for each in own for step in replayed(each["prompt_token_ids"], each["token_ids"], looking)]
    beyond = len(own) * speculation.tokens  # the server counts what it proposed and took beyond an answer's end, too
    assert 0 < sum(used for _, used in steps) <= counters["accepted_tokens"] <= sum(used for _, used in steps) + beyond
    assert counters["drafted_tokens"] == pytest.approx(sum(guessed for guessed, _ in steps), abs=beyond)
    assert len(together) == 16
    assert failed_findings(result) == []


def test_drafts_are_accepted_at_both_temperatures(drafted_server: VllmServer, tmp_path: Path) -> None:
    """At temperature 1 vLLM's CPU build as installed accepts next to nothing and answers gibberish: the plugin mends
    it."""
    shares = []
    for temperature in (0.0, 1.0):
        before = drafted_server.metrics()
        plan = LoadPlan(
            url=drafted_server.url,
            model=drafted_server.served_name,
            load=Load("closed", 4),
            requests=32,
            warmup_requests=0,
            max_tokens=48,
            prompts=str(ASSETS / "workloads" / "starter-code.jsonl"),
            temperature=temperature,
        )
        records, _ = run_level(plan, tmp_path / f"level-{temperature}")
        assert all(record.ok for record in records)
        after = drafted_server.metrics()
        drafted, accepted = (after[name] - before.get(name, 0.0) for name in ("drafted_tokens", "accepted_tokens"))
        shares.append(accepted / drafted)
    assert min(shares) > 0.4, shares


def test_a_failed_start_is_one_sentence_and_leaves_no_process(
    starter_target: Path, serve_python: Path, vllm_cache: Path, tmp_path: Path
) -> None:
    before = set(psutil.Process().children(recursive=True))
    too_long = eager(starter_target, serving={"max_model_len": 1_000_000})
    server = VllmServer(too_long, python=serve_python, log=tmp_path / "log", cache_root=vllm_cache, kv_cache_gib=0.0625)
    with pytest.raises(ServerFailed, match="max_model_len 1000000 is longer than the model's context") as caught:
        server.start()
    assert "\n" not in str(caught.value) and str(tmp_path / "log") in str(caught.value)
    assert set(psutil.Process().children(recursive=True)) <= before


def test_a_compile_cache_is_used_after_the_cache_and_the_model_have_moved(serve_python: Path, tmp_path: Path) -> None:
    """Used: the second start loads what the first compiled, and adds no kernel to its copy. It has n-grams, which the
    first had not: they change nothing of what is compiled."""
    first = tiny_llama(tmp_path / "staging" / "model")
    compiled = Variant(name="c", source="c", kind="artifact", model_path=str(first))
    key = compile_cache.build_compile_cache(
        compiled, serve_python, tmp_path / "staging" / "cache", tmp_path / "build.log", NoProgress()
    )
    assert compile_key.refusal(key, serve_python) is None
    final = tmp_path / "final"
    (tmp_path / "staging").rename(final)
    before = kernels(final / "cache")
    places = {"model_path": str(final / "model"), "compile_cache": str(final / "cache")}
    moved = compiled.model_copy(update={**places, "speculation": Speculation(method="ngram_adaptive", tokens=3)})
    with VllmServer(
        moved, python=serve_python, log=tmp_path / "log", cache_root=tmp_path / "root", kv_cache_gib=0.0625
    ) as server:
        assert server.startup is not None
        assert (server.startup.kind, server.startup.compiled_again) == ("cached", None)
        assert server.startup.ready_s == pytest.approx(server.started_seconds, rel=0.1)
        assert complete(server, "def main():", 4)["usage"]["completion_tokens"] == 4
        assert server.time_first_answer() == pytest.approx(server.startup.first_answer_s, abs=0.01)
        used = tmp_path / "root" / f"compiled-{compile_key.digest(final / 'cache')}"
        assert before and kernels(used) == before
    assert kernels(final / "cache") == before, "the artifact's own cache must not change"


def kernels(folder: Path) -> set[str]:
    """Names of the compiled objects: the hash of their source."""
    return {path.name for path in folder.rglob("*.so")}
