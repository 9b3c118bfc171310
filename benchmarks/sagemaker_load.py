"""How exactly the load generator stamps an endpoint of SageMaker: `python -m benchmarks.sagemaker_load`.

A server whose true send times are known is asked directly, and behind the fake account's runtime, which wraps each
piece into an event stream and notes when it writes it. The error is the generator's stamp less the time of writing.
What the runtime, a relay of Python threads, adds to each token is what a relay on the studio's machine would add.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from backend.domain.load.load import Load
from backend.domain.load.records import LoadPlan, RequestRecord
from backend.domain.maths.intervals import percentile
from backend.endpoint import header_fields, parse_address
from backend.evaluate.load import run_level
from tests.endpoints_in_service import in_service
from tests.fakes.running import ask, running, write_prompts
from tests.fakes.sagemaker.account import Account
from tests.fakes.sagemaker.server import serving
from tests.helpers.deployment_cases import PLAIN

STREAMS, ANSWERS, TOKENS, SIGNED = (1, 4, 16), 12, 32, 2000
"""Answers are a stream's."""


def main() -> None:
    account = Account()
    with (
        serving(account) as aws,
        running("exact_server.py", "--ttft-ms", 50, "--rate", 40, "--realtime") as url,
        tempfile.TemporaryDirectory() as folder,
    ):
        os.environ |= {
            "AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME": aws,
            "AWS_ACCESS_KEY_ID": "k",
            "AWS_SECRET_ACCESS_KEY": "s",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        name = in_service(account, PLAIN.model_copy(update={"region": "us-east-1"}), url=url)
        there = f"sagemaker://us-east-1/{name}"
        print(f"signing a request: {_signing(there) * 1e6:.0f} us of processor time")
        for streams in STREAMS:
            direct = _errors(_load(url, streams, Path(folder)), _sent(url))
            known = len(account.tables["sent"].get("answers", []))
            records = _load(there, streams, Path(folder))
            written = account.tables["sent"]["answers"][known:]
            behind = _errors(records, {number: _nearest(sends, written) for number, sends in _sent(url).items()})
            relayed = _relayed(records, _sent(url), written)
            print(
                f"{streams:>2} streams: direct {_words(direct)}; event stream {_words(behind)}; relay adds "
                f"{_words(relayed)}"
            )


def _load(url: str, streams: int, folder: Path) -> list[RequestRecord]:
    plan = LoadPlan(
        url=url,
        model="model",
        load=Load("closed", streams),
        requests=ANSWERS * streams,
        max_tokens=TOKENS,
        warmup_requests=1,
        prompts=write_prompts(folder),
    )
    records, audit = run_level(plan, folder / "level")
    assert all(record.ok for record in records) and not audit.client_limited, audit.reason
    return records


def _sent(url: str) -> dict[int, list[float]]:
    return {request["number"]: request["sends"] for request in ask(f"{url}/sent")}


def _number(record: RequestRecord) -> int:
    return int(record.text.split()[0][1:])


def _nearest(sends: Sequence[float], written: Sequence[list[float]]) -> list[float]:
    """The answer that the runtime began to write right after the server sent its first token."""
    later = [times for times in written if times[0] >= sends[0]]
    return min(later, key=lambda times: times[0], default=[])


def _errors(records: Sequence[RequestRecord], sent: dict[int, list[float]]) -> list[float]:
    """Milliseconds, of every token of the answers whose pieces came apart."""
    pairs = [(record.chunk_times, sent[_number(record)][: len(record.chunk_times)]) for record in records]
    return sorted(
        (actual - left) * 1e3
        for times, sends in pairs
        if len(sends) == len(times)
        for actual, left in zip(times, sends, strict=True)
    )


def _relayed(
    records: Sequence[RequestRecord], sent: dict[int, list[float]], written: Sequence[list[float]]
) -> list[float]:
    pairs = [(sent[_number(record)], _nearest(sent[_number(record)], written)) for record in records]
    return sorted((out - came) * 1e3 for sends, outs in pairs for came, out in zip(sends, outs, strict=False))


def _words(errors: Sequence[float]) -> str:
    return f"p50 {percentile(errors, 50):.2f} p99 {percentile(errors, 99):.2f} ms ({len(errors)})"


def _signing(url: str) -> float:
    place, body = parse_address(url), b"x" * 2000
    path = place.path("completions", streamed=True)
    began = time.process_time()
    for _ in range(SIGNED):
        header_fields(place, path, body)
    return (time.process_time() - began) / SIGNED


if __name__ == "__main__":
    main()
