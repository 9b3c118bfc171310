"""An endpoint of SageMaker as a variant: how it is written, what AWS tells of it, what is proven, and every way it is
refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backend.domain.errors import AccessRefused, NotFound, NotNow, RequestError
from backend.domain.evaluation.document import EvaluateOptions, Remote, Variant
from backend.domain.roles import Action
from backend.domain.what_if.costs import WhatIf, choose_pricing, repriced
from backend.evaluate.report.facts import variant_facts
from backend.present.words import costs, headline
from backend.service import Workspace
from backend.service.evaluations import bench, evaluations
from backend.service.models import endpoint_variants, variants
from backend.worker.kinds.evaluate import sagemaker_warnings
from backend.worker.measuring import runs
from tests import simulated
from tests.endpoints_in_service import in_service
from tests.fakes.running import write_prompts
from tests.fakes.sagemaker.account import Account, Fault
from tests.fakes.sagemaker.pointed import aws
from tests.helpers.deployment_cases import DEPLOYMENT
from tests.homes import open_home

pytestmark = pytest.mark.usefixtures("aws")

__all__ = ["aws"]
OPTIONS = {"concurrency": (1,), "requests": 2, "quality": False, "max_tokens": 3, "warmup_requests": 0, "repeats": 1}


def resolve_with_facts(source: str, home: Workspace) -> Variant:
    return endpoint_variants.with_aws_facts(home, variants.resolve(home, source))


def test_naming_one_asks_nothing_and_submitting_tells_what_aws_says(
    home: Workspace, aws: Account, tmp_path: Path
) -> None:
    name = in_service(aws, DEPLOYMENT)
    request = len(aws.log)
    chosen = evaluations.read_options(
        **OPTIONS, workload=write_prompts(tmp_path, *({"prompt": f"{n}"} for n in range(40)))
    )
    spec = evaluations.prepare(home, [f"sagemaker:{name}"], chosen)
    assert len(aws.log) == request and spec.variants[0].remote is None
    (result,) = evaluations.freeze(home, spec).variants
    assert (result.kind, result.url, result.model_path) == ("url", f"sagemaker://us-east-1/{name}", None)
    assert result.remote is not None
    assert result.remote.model_dump(include={"endpoint", "region", "instances", "artifact", "price_region"}) == {
        "endpoint": name,
        "region": "us-east-1",
        "instances": "2 x ml.g6.12xlarge",
        "artifact": "a-0123456789ab",
        "price_region": "us-west-2",
    }
    assert result.remote.findings == (
        "A probe was answered with text.",
        "The engine's log says quantization=compressed-tensors.",
    )


def test_the_running_instances_set_the_price_of_the_variant_alone(home: Workspace, aws: Account) -> None:
    there = resolve_with_facts(f"sagemaker:{in_service(aws, DEPLOYMENT)}@us-east-1", home)
    assert there.remote is not None and there.remote.usd_per_hour is not None
    one = resolve_with_facts(
        f"sagemaker:{in_service(aws, DEPLOYMENT.model_copy(update={'id': 'one', 'instances': 1}))}", home
    ).remote
    assert one is not None and there.remote.usd_per_hour == pytest.approx(2 * (one.usd_per_hour or 0))
    options = EvaluateOptions(price_per_hour=0.5)
    assert options.hourly_price(there) == there.remote.usd_per_hour
    assert options.hourly_price(Variant(name="m", source="m", kind="model")) == 0.5


def test_a_model_of_another_name_and_region_are_part_of_what_is_written(home: Workspace) -> None:
    resolved = variants.resolve(home, "sagemaker:mine-7@eu-west-3#org%2Fmodel")
    assert (resolved.url, resolved.served_name) == ("sagemaker://eu-west-3/mine-7", "org/model")


@pytest.mark.parametrize("written", ["sagemaker:", "sagemaker:ml.g6.12xlarge", "sagemaker:a@nowhere", "sagemaker:../x"])
def test_what_cannot_be_a_name_is_refused(home: Workspace, written: str) -> None:
    with pytest.raises(RequestError, match="write sagemaker:NAME, or sagemaker:NAME@REGION"):
        variants.resolve(home, written)


def test_one_that_is_not_there_or_does_not_serve_is_said_before_anything_is_queued(
    home: Workspace, aws: Account
) -> None:
    with pytest.raises(NotFound, match="There is no endpoint `chat` in us-east-1: `whetstone endpoints list` names"):
        resolve_with_facts("sagemaker:chat", home)
    aws.tables["endpoint plan"] = {"ends": "Failed", "reason": "no capacity."}
    name = in_service(aws, DEPLOYMENT)
    with pytest.raises(NotNow, match=rf"`{name}` is Failed \(no capacity\), so it cannot be measured now"):
        resolve_with_facts(f"sagemaker:{name}", home)


def test_one_of_ours_is_found_by_what_we_call_it_too(home: Workspace, aws: Account) -> None:
    name = in_service(aws, DEPLOYMENT)
    result = resolve_with_facts(f"sagemaker:{DEPLOYMENT.id}", home)
    assert (
        result.remote is not None and result.remote.endpoint == name and result.url == f"sagemaker://us-east-1/{name}"
    )


def test_what_was_deployed_from_here_is_named_as_it_is_listed_without_asking_aws(
    home: Workspace, aws: Account, tmp_path: Path
) -> None:
    assert variants.resolve(home, "sagemaker:chat").url == "sagemaker://us-east-1/chat"
    with home.changing(Action.DEPLOY, "chat"):
        pass
    for of_here in (home, open_home(tmp_path / "home", shared=True)):
        assert variants.resolve(of_here, "sagemaker:chat").url == "sagemaker://us-east-1/whetstone-chat"
    assert variants.resolve(home, "sagemaker:chat-two").url == "sagemaker://us-east-1/chat-two"
    with home.changing(Action.DELETE_ENDPOINT, "chat"):
        pass
    assert variants.resolve(home, "sagemaker:chat").url == "sagemaker://us-east-1/chat" and aws.log == []


def test_the_discount_of_a_price_is_kept_with_it(home: Workspace, aws: Account) -> None:
    name = f"sagemaker:{in_service(aws, DEPLOYMENT)}"
    cheaper = replace(home, settings=home.settings.model_copy(update={"discount": 0.2}))
    full, less = resolve_with_facts(name, home).remote, resolve_with_facts(name, cheaper).remote
    assert full is not None and less is not None and (full.discount, less.discount) == (0.0, 0.2)
    assert less.usd_per_hour == pytest.approx(0.8 * (full.usd_per_hour or 0))
    document = priced(own=4.0, typed=None)
    there = document.variants[1].model_copy(
        update={"variant": document.variants[1].variant.model_copy(update={"remote": less})}
    )
    changed = document.model_copy(update={"variants": [document.variants[0], there]})
    assert "on demand in us-west-2 (20% off) (2 x ml.g6.12xlarge)" in costs.hour_words(changed, WhatIf())
    assert "on demand in us-west-2 (20% off)" in str(variant_facts(changed, there))
    for request, share in ((0.0, 0.8), (0.5, 0.5)):
        price = runs.pricing(EvaluateOptions(discount=request), there.variant)
        assert price is not None and price.hour == pytest.approx(share * (full.usd_per_hour or 0))


@pytest.mark.parametrize(
    ("code", "words"),
    [("AccessDeniedException", "need sagemaker:InvokeEndpoint"), ("ExpiredTokenException", "have expired")],
)
def test_a_right_that_lacks_is_said_before_anything_is_queued(
    home: Workspace, aws: Account, code: str, words: str
) -> None:
    name = in_service(aws, DEPLOYMENT)
    aws.faults.append(Fault(code, "InvokeEndpoint", times=9))
    with pytest.raises(AccessRefused, match=words):
        resolve_with_facts(f"sagemaker:{name}", home)


def test_a_foreign_endpoint_is_unproven_and_refused_where_others_reach_the_studio(
    home: Workspace, aws: Account, tmp_path: Path
) -> None:
    name = in_service(aws, DEPLOYMENT)
    aws.tables["tags"].clear()
    remote = resolve_with_facts(f"sagemaker:{name}", home).remote
    assert remote is not None and (remote.findings, remote.artifact) == ((), None)
    assert sagemaker_warnings("v", remote) == [
        "`v` is served at SageMaker in us-east-1 (2 x ml.g6.12xlarge): its flags, cache, memory and whoever else asks "
        "it cannot "
        "be seen from here, and its latencies include the network. Nothing of it was proven, as Whetstone did not "
        "deploy it."
    ]
    shared = open_home(tmp_path / "shared", shared=True)
    with pytest.raises(RequestError, match="it calls only endpoints that it deployed"):
        resolve_with_facts(f"sagemaker:{name}", shared)
    with pytest.raises(RequestError, match="it calls only endpoints that it deployed"):
        variants.resolve(shared, "sagemaker:mine")


@pytest.mark.process
def test_a_bench_of_one_is_at_its_own_price(home: Workspace, aws: Account, tmp_path: Path) -> None:
    name = in_service(aws, DEPLOYMENT)
    chosen = evaluations.read_options(
        **OPTIONS, workload=write_prompts(tmp_path, *({"prompt": f"{n}"} for n in range(9)))
    )
    outcome = bench.run_bench(home, f"sagemaker:{name}", None, chosen)
    assert outcome.failure is None
    (level,) = outcome.levels
    assert (level["invocations"], level["invocation_errors"], level["output_tokens"]) == (2, 0, 3.0)
    assert level["price"]["per_million_output"] > 0


# What an hour of its own does to prices


def priced(own: float | None, typed: float | None):
    document = simulated.evaluation(names=("original", "there"), speeds=(1.0, 2.0), levels=(1,))
    remote = Remote(
        endpoint="e", region="us-east-1", instances="1 x ml.g6.xlarge", usd_per_hour=own, price_region="us-east-1"
    )
    first, second = document.variants
    second = second.model_copy(update={"variant": second.variant.model_copy(update={"remote": remote})})
    options = document.options.model_copy(update={"price_per_hour": typed})
    return document.model_copy(update={"variants": [first, second], "options": options})


def test_a_token_is_dearer_where_the_hour_is_dearer_than_the_speed_makes_up() -> None:
    document = priced(own=4.0, typed=1.0)
    win = headline.find_win(document)
    assert win is not None and win.row.ratio is not None
    share = headline.cost_share(document, win)
    assert share == pytest.approx(4 / win.row.ratio)
    assert f"costs {share:.2f}x as much per token" in headline.headline_sentence(document)
    tile = headline.tiles(document, win, ("", ""))[2]
    assert "more expensive" in tile.value and tile.detail.endswith("at 1 and 4 USD per hour")


def test_where_only_one_hour_is_known_no_token_is_called_cheaper() -> None:
    for document in (priced(own=4.0, typed=None), priced(own=None, typed=None)):
        win = headline.find_win(document)
        assert win is not None and headline.cost_share(document, win) is None
        assert "a token" not in headline.headline_sentence(document)


def test_an_hour_chosen_afterwards_takes_the_place_of_its_own() -> None:
    document = priced(own=4.0, typed=None)
    assert document.has_price and repriced(document, WhatIf()) is document
    assert costs.hour_words(document, WhatIf()) == (
        "An hour of `there` costs 4 USD, on demand in us-east-1 (1 x ml.g6.xlarge)."
    )
    changed = repriced(document, WhatIf(per_hour=1.0))
    for result in changed.variants:
        pricing = choose_pricing(changed, WhatIf(), result.variant)
        assert pricing is not None and pricing.per_hour == 1.0
    cheaper = repriced(document, WhatIf(discount=0.5)).variants[1]
    pricing = choose_pricing(document, WhatIf(discount=0.5), cheaper.variant)
    assert pricing is not None and pricing.hour == 2.0
