"""Models of a hub over its real protocol on loopback: cards from ranges, refusals in one sentence, the token where it
belongs."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.catalog.cards.card import read_card
from backend.catalog.remote import sources
from backend.domain.errors import (
    AccessRefused,
    InvalidModel,
    RequestError,
    SourceUnreachable,
    UnknownModel,
    WhetstoneError,
)
from backend.domain.model.inspection import Inspection, must_accept
from tests.cases.models import llama
from tests.cases.stored import MODELOPT, SMALL, modelopt_fp8, store
from tests.fakes.running import running
from tests.hubs import FakeHub, shard
from tests.tiny import edit_json, tiny_llama

pytestmark = pytest.mark.process

ID = "org/tiny"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny", hidden=32, heads=2, kv_heads=1, intermediate=64)


@pytest.fixture(scope="module")
def running_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    root = tmp_path_factory.mktemp("hub")
    with running("hub.py", "--root", root) as url:
        yield FakeHub(url, root)


@pytest.fixture
def hub(running_hub: FakeHub, model: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """The hub with one sound model in it, no faults and nothing in its log."""
    shutil.rmtree(running_hub.root / "org", ignore_errors=True)
    shutil.copytree(model, running_hub.root / ID)
    monkeypatch.setenv("HF_ENDPOINT", running_hub.url)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    running_hub.fault()
    running_hub.forget()
    return running_hub


def inspect(id: str = ID, revision: str | None = None) -> Inspection:
    return sources.inspect(sources.find(id, revision))


def refused(kind: type[WhetstoneError], *words: str, id: str = ID, revision: str | None = None) -> None:
    """Inspecting the model is refused before any work, in one sentence with these words."""
    with pytest.raises(kind) as caught:
        inspect(id, revision)
    message = str(caught.value)
    assert caught.value.exit_code == 2
    assert "\n" not in message
    assert message.endswith(".")
    for word in words:
        assert word in message


def test_the_card_of_a_hub_model_is_the_card_of_its_files(hub: FakeHub, model: Path) -> None:
    result, local = inspect(), read_card(model)
    elsewhere = {"id", "path", "origin", "tokenizer_hash", "licence"}
    assert result.card.model_dump(exclude=elsewhere) == local.model_dump(exclude=elsewhere)
    assert result.card.id == f"org/tiny@{result.revision[:8]}"
    assert result.card.bytes_by_dtype == {"BF16": local.parameters * 2}
    assert result.bytes == sum((model / name).stat().st_size for name in result.files)


def test_quantized_weights_are_recognised_from_ranges_and_their_config_is_fetched(hub: FakeHub, tmp_path: Path) -> None:
    local = store(llama(tmp_path / "fp8", **SMALL), modelopt_fp8, MODELOPT, "hf_quant_config.json")
    shutil.copytree(local, hub.root / "org/fp8")
    card, files = inspect("org/fp8").card, inspect("org/fp8").files
    assert card is not None and card.stored is not None and card.stored == read_card(local).stored
    assert (
        card.stored.sentence in card.notes
        and "hf_quant_config.json" in files
        and card.revision == read_card(local).revision
    )


def test_the_hubs_own_library_finds_the_fake_hub_faithful(hub: FakeHub, model: Path, tmp_path: Path) -> None:
    """huggingface_hub's own client, which the fake was written after, downloads a snapshot from it."""
    from huggingface_hub import snapshot_download

    folder = Path(snapshot_download(ID, endpoint=hub.url, token=False, local_dir=tmp_path / "snapshot"))
    assert (folder / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert read_card(folder).revision == read_card(model).revision


def test_no_weights_are_fetched_for_a_card(hub: FakeHub, tmp_path: Path) -> None:
    tiny_llama(hub.root / "org/wide", hidden=256, heads=2, kv_heads=1, intermediate=2048, layers=4)
    inspect("org/wide")
    weights = (hub.root / "org/wide/model.safetensors").stat().st_size
    fetched = [entry["sent"] for entry in hub.served("/cdn/")]
    assert weights > 10_000_000
    assert fetched == [64 * 1024]


def test_a_model_in_400_shards_costs_less_than_3_mb(hub: FakeHub) -> None:
    shard(hub.root / ID, 400)
    edit_json(hub.root / ID / "config.json", num_hidden_layers=400)
    inspection = inspect()
    assert inspection.card.layers == 400
    assert inspection.card.parameters == 400 * 3 * 32
    assert hub.sent() < 3_000_000
    assert len(hub.served("/cdn/")) == 400  # one request a shard: the first read was always long enough


def test_experts_are_read_from_the_config(hub: FakeHub) -> None:
    edit_json(hub.root / ID / "config.json", num_local_experts=8, num_experts_per_tok=2)
    card = inspect().card
    assert (card.experts, card.experts_per_token) == (8, 2)
    edit_json(hub.root / ID / "config.json", num_local_experts=1)
    assert inspect().card.experts is None


def test_only_what_serving_needs_would_be_fetched(hub: FakeHub) -> None:
    folder = hub.root / ID
    for name in (
        "modeling_tiny.py",
        "tf_model.h5",
        "pytorch_model.bin",
        "model.gguf",
        "LICENSE",
        "LICENSE.py",
        "training_args.bin",
    ):
        (folder / name).write_bytes(b"x")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "config.json").write_text("{}")
    targets = {
        "LICENSE",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert set(inspect().files) == targets


def test_a_branch_and_a_tag_are_pinned_to_the_commit(hub: FakeHub) -> None:
    hub.settings(ID, sha="a" * 40)
    assert inspect(revision="v1.0").revision == "a" * 40
    assert inspect(f"{hub.url}/{ID}/tree/main").source == ID


def test_the_token_goes_to_the_hub_and_not_where_it_sends_on(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.settings(ID, private=True)
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    inspect()
    by_name = {entry["host"]: entry["token"] for entry in hub.log()}
    assert by_name == {"127.0.0.1": "Bearer hf_good", "localhost": None}


def test_the_owners_token_is_not_for_strangers_unless_it_is_listed(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.settings(ID, private=True)
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    monkeypatch.setenv("WHETSTONE_SHARED", "1")
    refused(UnknownModel, "list HF_TOKEN in WHETSTONE_SHARED_TOKENS", "others reach this studio")
    assert {entry["token"] for entry in hub.log()} == {None}
    monkeypatch.setenv("WHETSTONE_SHARED_TOKENS", "OTHER, HF_TOKEN")
    inspect()


def test_a_token_saved_on_the_machine_is_not_used(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from huggingface_hub import constants

    (tmp_path / "token").write_text("hf_good")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    inspect()
    assert {entry["token"] for entry in hub.log()} == {None}


@pytest.mark.parametrize("token", ["", "hf_poor"])
def test_a_missing_and_a_private_model_look_alike(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    hub.settings(ID, private=True)
    for id in (ID, "org/none"):
        refused(UnknownModel, f"`{id}`", "HF_TOKEN", "no access" if token else "private", id=id)


@pytest.mark.parametrize("token", ["", "hf_poor"])
def test_a_gated_model_says_where_to_ask(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    hub.settings(ID, gated="manual")
    refused(AccessRefused, "gated", f"{hub.url}/{ID}", "HF_TOKEN")
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    assert inspect().gated


def test_a_wrong_token_is_refused_and_never_shown(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    refused(AccessRefused, "HF_TOKEN")
    with pytest.raises(AccessRefused) as caught:
        inspect()
    assert "hf_wrong" not in str(caught.value)


def test_a_revision_that_is_gone_is_named(hub: FakeHub) -> None:
    refused(UnknownModel, "`v9`", "/commits", revision="v9")


def test_a_hub_that_is_not_there(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
        refused(SourceUnreachable, "Cannot reach")


def test_a_server_that_is_no_hub(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"{hub.url}/-/log")
    refused(SourceUnreachable, "not answer as a model hub")


@pytest.mark.parametrize("address", ["huggingface.co", "ftp://hub", "http://"])
def test_an_endpoint_that_is_no_address(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", address)
    refused(RequestError, "HF_ENDPOINT")


def test_an_endpoint_with_a_password_is_refused_without_repeating_it(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://me:secret@hub")
    with pytest.raises(RequestError) as caught:
        inspect()
    assert "secret" not in str(caught.value)


def test_a_busy_hub_is_asked_again_for_small_files_only(hub: FakeHub) -> None:
    source = sources.find(ID)
    hub.fault(status=503, times=1)
    assert sources.inspect(source).card.layers == 2
    hub.fault(status=500, times=1)
    refused(SourceUnreachable, "status 500")


def test_a_server_without_ranges_is_told(hub: FakeHub) -> None:
    tiny_llama(hub.root / "org/wide", hidden=256, heads=2, kv_heads=1)
    hub.fault(no_ranges=1)
    refused(SourceUnreachable, "part of a file", id="org/wide")


def rewrite(path: Path, **changes: Any) -> None:
    """Change fields of the first tensor in a safetensors header; the data stays."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    next(value for key, value in header.items() if key != "__metadata__").update(changes)
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + content[end:])


def test_damaged_models_are_refused_before_any_download(hub: FakeHub) -> None:
    folder = hub.root / ID
    config, weights = folder / "config.json", folder / "model.safetensors"
    sound, whole = config.read_text(), weights.read_bytes()
    config.write_text("{")
    refused(InvalidModel, "config.json is not valid JSON")
    config.write_text(sound)
    edit_json(config, architectures=["OwnCodeForCausalLM"])
    refused(InvalidModel, "'OwnCodeForCausalLM'", "runs no code")
    config.write_text(sound)
    weights.write_bytes(whole[:-10])
    refused(InvalidModel, "model.safetensors", "where its header describes")
    weights.write_bytes(whole)
    rewrite(weights, data_offsets=[0, 10**15])
    refused(InvalidModel, "do not match its shape")
    weights.rename(folder / "pytorch_model.bin")
    refused(InvalidModel, "pytorch_model.bin holds pickled weights")


def test_an_index_and_shards_that_do_not_belong_together(hub: FakeHub) -> None:
    folder = hub.root / ID
    shard(folder, 3)
    edit_json(folder / "config.json", num_hidden_layers=3)
    assert inspect().card.layers == 3
    shutil.copy(folder / "model-00003-of-00003.safetensors", folder / "model-00004-of-00004.safetensors")
    refused(InvalidModel, "does not name model-00004-of-00004.safetensors")
    (folder / "model-00004-of-00004.safetensors").unlink()
    (folder / "model-00002-of-00003.safetensors").unlink()
    refused(InvalidModel, "names model-00002-of-00003.safetensors, which is not in org/tiny")


def test_a_model_without_a_tokenizer_is_refused(hub: FakeHub) -> None:
    (hub.root / ID / "tokenizer.json").unlink()
    refused(InvalidModel, "no tokenizer")


@pytest.mark.parametrize("id", ["a/b/c", "../x", "org/..", "org/na me", "-x/y", "a--b/c", "", "org/"])
def test_what_cannot_be_a_hub_id(hub: FakeHub, id: str) -> None:
    assert not sources.is_remote(id)
    refused(UnknownModel, "neither", id=id)


@pytest.mark.parametrize(
    ("licence", "gated", "requested"),
    [
        ("apache-2.0", False, False),
        ("MIT", False, False),
        ("apache-2.0", True, True),
        ("llama3.1", False, True),
        (None, False, True),
    ],
)
def test_which_licences_are_asked_for(licence: str | None, gated: bool, requested: bool) -> None:
    assert must_accept(licence, gated=gated) is requested


def test_the_licence_is_what_the_model_card_says(hub: FakeHub) -> None:
    hub.settings(ID, licence="apache-2.0")
    assert (inspect().licence, inspect().must_accept, inspect().card.licence) == ("apache-2.0", False, "apache-2.0")
    hub.settings(ID, tags=["license:gemma"])
    assert (inspect().licence, inspect().must_accept) == ("gemma", True)
