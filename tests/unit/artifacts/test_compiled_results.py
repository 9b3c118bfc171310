"""What was compiled for Neuron, kept in a bucket of moto's server behind a proxy that breaks what it is told to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.artifacts import compiled_results
from backend.artifacts.compiled_results import CompiledCache
from backend.aws.s3 import ConnectionLost
from backend.domain.neuron import compile_cache
from backend.domain.neuron.compile_plan import CompilePlan
from tests.buckets import empty_bucket, faults, keys
from tests.fakes.running import running

pytestmark = pytest.mark.process
PLAN = CompilePlan(
    stack="nxd-inference",
    model="starter",
    model_type="llama",
    model_hash="1",
    accelerator="Inferentia2",
    target="trn1",
    tensor_parallel=8,
    batch=1,
    positions=256,
    context_buckets=(128, 256),
    token_buckets=(128, 256),
    dtype="bf16",
)
WEIGHTS = "weights/tp0_sharded_checkpoint.safetensors"


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[str, str]]:
    """moto's S3, and the proxy before it."""
    with running("s3.py") as address, running("faulty.py", address) as proxy:
        yield address, proxy


@pytest.fixture
def client(servers: tuple[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    address, proxy = servers
    client = empty_bucket(address, "team", monkeypatch, tmp_path)
    faults(proxy)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy)
    return client


@pytest.fixture
def cache(client: Any) -> CompiledCache:
    return CompiledCache("s3://team/studio/compiled")


def folder(path: Path, content: bytes = b"graphs" * 50_000) -> Path:
    (path / "weights").mkdir(parents=True)
    (path / "model.pt").write_bytes(content)
    (path / WEIGHTS).write_bytes(b"weights")
    (path / "neuron_config.json").write_text("")
    return path


def put(cache: CompiledCache, path: Path, plan: CompilePlan = PLAN) -> None:
    cache.put(plan.key, plan.model, plan.fields, path, {"neuronx-cc": "2.21"})


def test_what_is_put_is_looked_up_fetched_whole_and_a_miss_names_its_field(
    cache: CompiledCache, tmp_path: Path
) -> None:
    assert compile_cache.look_up(PLAN, cache.entries()).nearest is None
    put(cache, folder(tmp_path / "made"))
    assert compile_cache.look_up(PLAN, cache.entries()).state == "hit"
    other = PLAN.model_copy(update={"tensor_parallel": 24})
    assert [each.field for each in compile_cache.look_up(other, cache.entries()).differs] == ["tensor_parallel"]
    entry = cache.fetch(PLAN.key, tmp_path / "got")
    assert entry is not None and entry.versions == {"neuronx-cc": "2.21"}
    for name in ("model.pt", WEIGHTS, "neuron_config.json"):
        assert (tmp_path / "got" / name).read_bytes() == (tmp_path / "made" / name).read_bytes()
    assert cache.fetch(other.key, tmp_path / "none") is None and not (tmp_path / "none").exists()


def test_a_body_that_breaks_off_goes_on_where_it_ended(
    cache: CompiledCache, servers: tuple[str, str], tmp_path: Path
) -> None:
    put(cache, folder(tmp_path / "made"))
    cut = {"method": "GET", "has": "/files/", "do": "cut"}
    faults(servers[1], {**cut, "times": compiled_results.TRIES - 2})
    assert cache.fetch(PLAN.key, tmp_path / "got") is not None
    assert (tmp_path / "got" / "model.pt").read_bytes() == (tmp_path / "made" / "model.pt").read_bytes()
    faults(servers[1], {**cut, "times": 50})
    with pytest.raises(ConnectionLost):
        cache.fetch(PLAN.key, tmp_path / "broken")
    faults(servers[1])
    assert not (tmp_path / "broken").exists() and len(cache.entries()) == 1, "a bad line says nothing of the entry"


@pytest.mark.parametrize("damage", ["changed", "gone", "outside"])
def test_an_entry_that_is_not_what_it_says_is_no_hit_twice(
    cache: CompiledCache, client: Any, tmp_path: Path, damage: str
) -> None:
    put(cache, folder(tmp_path / "made"))
    (entry,) = cache.entries()
    key = f"studio/compiled/files/{PLAN.key}/{entry.files['model.pt'][1]}"
    if damage == "changed":
        client.put_object(Bucket="team", Key=key, Body=b"x" * entry.files["model.pt"][0])
    elif damage == "gone":
        client.delete_object(Bucket="team", Key=key)
    else:
        named = entry.model_copy(update={"files": {"../../outside": entry.files["model.pt"]}})
        client.put_object(
            Bucket="team", Key=f"studio/compiled/entries/{PLAN.key}.json", Body=named.model_dump_json().encode()
        )
    assert cache.fetch(PLAN.key, tmp_path / "got" / "compiled") is None
    assert not (tmp_path / "got" / "compiled").exists() and not list(tmp_path.rglob("outside"))
    assert cache.entries() == []
    assert damage == "outside" or keys(client, "team") == []
    put(cache, tmp_path / "made")
    assert cache.fetch(PLAN.key, tmp_path / "again") is not None


def test_a_put_that_breaks_leaves_no_entry_and_the_next_one_is_whole(
    cache: CompiledCache, servers: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.aws.objects.TRIES", 1)
    once, created = CompiledCache(cache.address), folder(tmp_path / "made")
    faults(servers[1], {"method": "PUT", "has": "/files/", "do": 503, "times": 5})
    with pytest.raises(ConnectionLost):
        put(once, created)
    faults(servers[1])
    assert cache.entries() == []
    put(cache, created)
    assert cache.fetch(PLAN.key, tmp_path / "got") is not None


def test_two_writers_of_one_key_leave_one_whole_entry(cache: CompiledCache, client: Any, tmp_path: Path) -> None:
    """Two compilations of one plan need not come to the same bytes."""
    folders = [folder(tmp_path / str(number), f"graphs {number}".encode() * 40_000) for number in range(4)]
    threads = [threading.Thread(target=put, args=(CompiledCache(cache.address), each)) for each in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.fetch(PLAN.key, tmp_path / "got") is not None
    assert (tmp_path / "got" / "model.pt").read_bytes() in [(each / "model.pt").read_bytes() for each in folders]


def test_removing_a_damaged_entry_spares_the_one_written_meanwhile(cache: CompiledCache, tmp_path: Path) -> None:
    put(cache, folder(tmp_path / "made"))
    (before,) = cache.entries()
    put(cache, folder(tmp_path / "other", b"other graphs"))
    cache.remove(before)
    assert cache.fetch(PLAN.key, tmp_path / "got") is not None
    assert (tmp_path / "got" / "model.pt").read_bytes() == b"other graphs"
