"""An evaluation of an endpoint of SageMaker beside the container behind it, as a job, to the whole document."""

from __future__ import annotations

import pytest

from backend.service import Workspace
from tests.endpoints_in_service import in_service
from tests.fakes.running import running
from tests.fakes.sagemaker.account import Account
from tests.fakes.sagemaker.pointed import aws
from tests.helpers.deployment_cases import DEPLOYMENT
from tests.integration.load.evaluating import evaluated

pytestmark = pytest.mark.usefixtures("aws")

__all__ = ["aws"]


def test_an_endpoint_is_evaluated_beside_its_container(home: Workspace, aws: Account) -> None:
    with running("exact_server.py", "--ttft-ms", 5, "--rate", 400) as url:
        source = f"sagemaker:{in_service(aws, DEPLOYMENT, url=url, split=50)}@us-east-1"
        document, folder = evaluated(home, [url, source], concurrency=(1, 2), requests=4, repeats=2, quality=True)
    plain, there = document.variants
    assert [level.load.words for level in there.levels] == [level.load.words for level in plain.levels]
    for ours, theirs in zip(there.levels, plain.levels, strict=True):
        counts = (
            ours.invocations,
            ours.invocation_errors,
            ours.output_tokens,
            ours.input_tokens,
            ours.audit.token_times,
        )
        assert counts == (8, 0, 4.0, theirs.input_tokens, ("continuous",))
        assert ours.ttft_ms and ours.tpot_ms and ours.price and theirs.price is None
        assert ours.energy is None
    assert {row.metric for row in document.comparison} >= {"ttft_ms_p50", "output_tokens_per_s"}
    assert (there.peak_rss_bytes, there.step, there.weights_sha256, there.speculates, there.starts) == (None,) * 4 + (
        [],
    )
    assert there.quality is not None and there.quality.answers == there.quality.answers_asked
    (words,) = [each for each in document.warnings if "is served at SageMaker" in each]
    assert "cannot be seen from here" in words and "A probe was answered with text." in words
    report = (folder / "report.html").read_text()
    assert "Endpoint at SageMaker" in report and "2 x ml.g6.12xlarge" in report
    assert "not known: it was not started here" in report and "none: unchanged" not in report
    request = len(aws.requests_for("InvokeEndpointWithResponseStream"))
    assert request == len(aws.tables["sent"]["answers"]) > 16
