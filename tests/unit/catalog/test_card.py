"""The model card reader: facts from real files, one sentence for each kind of bad folder, and never another
exception."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from backend.catalog.cards import safetensors_header
from backend.catalog.cards.card import read_card
from backend.domain.errors import InvalidModel, UnknownModel
from backend.domain.model.facts import ModelCard
from tests.properties import examples
from tests.tiny import edit_json, tiny_llama


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("sound") / "tiny", hidden=32, heads=2, kv_heads=1, intermediate=64)


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "model"))


def write_safetensors(path: Path, header: Any, data: bytes = b"") -> None:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)


def u8(start: int, end: int) -> dict[str, Any]:
    return {"dtype": "U8", "shape": [end - start], "data_offsets": [start, end]}


def refused(folder: Path, *words: str) -> None:
    """The folder is refused in one sentence with these words, before any work (exit code 2)."""
    with pytest.raises(InvalidModel) as caught:
        read_card(folder)
    message = str(caught.value)
    assert caught.value.exit_code == 2
    assert "\n" not in message
    assert message.endswith(".")
    for word in words:
        assert word in message


def test_the_card_holds_what_config_and_headers_say(sound: Path) -> None:
    from transformers import AutoModelForCausalLM

    card = read_card(sound, id="starter", origin="starter")
    model = AutoModelForCausalLM.from_pretrained(sound)
    assert (card.id, card.origin, card.path) == ("starter", "starter", str(sound))
    assert card.parameters == sum(p.numel() for p in model.parameters())
    assert card.weights_bytes == (sound / "model.safetensors").stat().st_size
    assert (card.layers, card.hidden_size, card.intermediate_size, card.vocabulary) == (2, 32, 64, 320)
    assert (card.heads, card.kv_heads, card.head_dim, card.max_positions) == (2, 1, 16, 512)
    assert (card.architecture, card.model_type, card.dtype) == ("LlamaForCausalLM", "llama", "bfloat16")
    assert card.tied_embeddings
    assert card.quantization is None
    assert card.kv_bytes_per_token == 2 * 2 * 1 * 16 * 2


def test_a_head_stored_beside_tied_embeddings_is_counted_once(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    before = read_card(folder).parameters
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, folder / "model.safetensors")
    assert read_card(folder).parameters == before


def test_untied_embeddings_count_twice(tmp_path: Path) -> None:
    shape = {"hidden": 32, "heads": 2, "kv_heads": 1, "intermediate": 64}
    tied = read_card(tiny_llama(tmp_path / "tied", **shape))
    untied = read_card(tiny_llama(tmp_path / "untied", tied=False, **shape))
    assert untied.parameters == tied.parameters + 320 * 32
    assert untied.tokenizer_hash == tied.tokenizer_hash
    assert untied.revision != tied.revision


def test_the_revision_changes_with_config_and_not_with_the_place(sound: Path, folder: Path) -> None:
    assert read_card(folder).revision == read_card(sound).revision
    edit_json(folder / "config.json", rms_norm_eps=1e-4)
    assert read_card(folder).revision != read_card(sound).revision


def test_the_tokenizer_hash_sees_added_tokens_and_not_the_order_of_the_file(folder: Path) -> None:
    before = read_card(folder).tokenizer_hash
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text())
    document["model"]["vocab"] = dict(reversed(document["model"]["vocab"].items()))
    path.write_text(json.dumps(document))
    assert read_card(folder).tokenizer_hash == before
    document["added_tokens"].append({"id": 320, "content": "<extra>"})
    path.write_text(json.dumps(document))
    assert read_card(folder).tokenizer_hash != before


def test_without_tokenizer_json_the_other_tokenizer_files_are_hashed(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(b"one")
    first = read_card(folder).tokenizer_hash
    (folder / "tokenizer.model").write_bytes(b"two")
    assert read_card(folder).tokenizer_hash != first


def test_shards_are_read_through_their_index(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    before = read_card(folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[:5], "model-00002-of-00002.safetensors": names[5:]}
    for shard, reserved in shards.items():
        save_file({name: tensors[name] for name in reserved}, folder / shard)
    index = {"weight_map": {name: shard for shard, current in shards.items() for name in current}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_card(folder).parameters == before.parameters
    (folder / "model-00002-of-00002.safetensors").unlink()
    refused(folder, "model-00002-of-00002.safetensors", "download the missing file")


def test_an_index_cannot_reach_outside_the_folder(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../outside.safetensors"}}))
    refused(folder, "'../outside.safetensors'")


def test_an_index_that_lists_a_tensor_no_shard_holds_is_refused(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"ghost": "model.safetensors"}}))
    refused(folder, "'ghost'")


@pytest.mark.parametrize("weight_map", [None, {}, [], {"a": 1}])
def test_an_index_without_a_usable_weight_map_is_refused(folder: Path, weight_map: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    refused(folder, "weight_map")


def test_a_missing_folder_is_an_unknown_model(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match="no folder"):
        read_card(tmp_path / "nowhere")


def test_a_folder_without_config_is_refused(folder: Path) -> None:
    (folder / "config.json").unlink()
    refused(folder, "no config.json")


@pytest.mark.parametrize("text", ["{", "", "[1]", "null", '"a"', "\x00", "[" * 20000])
def test_a_broken_config_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    refused(folder, "config.json")


def test_a_config_that_is_not_text_is_refused(folder: Path) -> None:
    (folder / "config.json").write_bytes(b"\xff\xfe\xfa")
    refused(folder, "config.json")


@pytest.mark.parametrize("field", ["architectures", "model_type", "hidden_size", "num_hidden_layers", "vocab_size"])
def test_a_config_without_an_architecture_field_is_refused_by_name(folder: Path, field: str) -> None:
    edit_json(folder / "config.json", **{field: None})
    refused(folder, f"`{field}`")


@pytest.mark.parametrize("value", ["8", 0, -1, 2.5, True, []])
def test_a_size_that_is_not_a_whole_number_is_refused(folder: Path, value: Any) -> None:
    edit_json(folder / "config.json", num_attention_heads=value)
    refused(folder, "`num_attention_heads`")


def test_config_and_weights_of_different_models_are_refused(folder: Path) -> None:
    edit_json(folder / "config.json", vocab_size=321)
    refused(folder, "different models")
    edit_json(folder / "config.json", vocab_size=320, num_hidden_layers=3)
    refused(folder, "3 layers")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "epoch.ckpt"])
def test_pickled_weights_are_refused_by_name(folder: Path, name: str) -> None:
    (folder / "model.safetensors").rename(folder / name)
    refused(folder, f"{name} holds pickled weights, which can run code when loaded: convert it to safetensors")


def test_a_pickled_file_beside_safetensors_does_no_harm(folder: Path) -> None:
    (folder / "training_args.bin").write_bytes(b"x")
    assert read_card(folder).layers == 2


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    refused(folder, "model.safetensors.index.json")
    (folder / "other.safetensors").unlink()
    refused(folder, "no safetensors weights")


def test_a_folder_without_tokenizer_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    refused(folder, "no tokenizer")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"model": {"vocab": 3}}', '{"model": {"vocab": {"a": "b"}}}'])
def test_a_damaged_tokenizer_is_refused(folder: Path, text: str) -> None:
    (folder / "tokenizer.json").write_text(text)
    refused(folder, "tokenizer.json is damaged")


BAD_HEADERS: dict[str, tuple[Any, bytes]] = {
    "not JSON": (b"{", b""),
    "not an object": ([1], b""),
    "a name twice": (b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}}', b""),
    "an entry that is no object": ({"a": 1}, b""),
    "an unknown dtype": ({"a": {**u8(0, 1), "dtype": "P8"}}, b"x"),
    "a dtype that is no text": ({"a": {**u8(0, 1), "dtype": []}}, b"x"),
    "a negative shape": ({"a": {**u8(0, 1), "shape": [-1]}}, b"x"),
    "a shape that does not match the bytes": ({"a": {**u8(0, 1), "shape": [2]}}, b"x"),
    "offsets the wrong way round": ({"a": {**u8(0, 1), "data_offsets": [1, 0]}}, b"x"),
    "three offsets": ({"a": {**u8(0, 1), "data_offsets": [0, 1, 2]}}, b"x"),
    "offsets beyond the file": ({"a": u8(0, 9)}, b"x"),
    "overlapping tensors": ({"a": u8(0, 4), "b": u8(2, 6)}, b"x" * 6),
    "a hole": ({"a": u8(0, 2), "b": u8(4, 6)}, b"x" * 6),
    "data that no tensor owns": ({"a": u8(0, 2)}, b"x" * 6),
}


@pytest.mark.parametrize("kind", BAD_HEADERS)
def test_a_header_is_refused_for(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, *BAD_HEADERS[kind])
    with pytest.raises(InvalidModel, match=r"model.safetensors is not a sound safetensors file"):
        safetensors_header.read(path)


@pytest.mark.parametrize("prefix", [b"", b"\x08", (10**9).to_bytes(8, "little"), b"\xff" * 8])
def test_an_impossible_header_size_is_refused(prefix: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(prefix + b"{}")
    with pytest.raises(InvalidModel, match="impossible size"):
        safetensors_header.read(path)


def test_the_header_says_where_each_tensor_lies(tmp_path: Path) -> None:
    import numpy
    from safetensors.numpy import save_file

    path = tmp_path / "two.safetensors"
    save_file({"a": numpy.zeros((2, 3), numpy.float32), "b": numpy.zeros(5, numpy.int8)}, path)
    tensors = safetensors_header.read(path)
    assert {name: (t.dtype, t.shape, t.end - t.start) for name, t in tensors.items()} == {
        "a": ("F32", (2, 3), 24),
        "b": ("I8", (5,), 5),
    }


def consistent(card: ModelCard, sound: ModelCard) -> bool:
    return card.parameters == sound.parameters and card.weights_bytes == sound.weights_bytes


@examples(300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_byte_in_the_header_gives_a_refusal_or_a_consistent_card(
    folder: Path, sound: Path, data: Any
) -> None:
    content = bytearray((sound / "model.safetensors").read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    position = data.draw(st.integers(0, header - 1))
    content[position] ^= data.draw(st.integers(1, 255))
    (folder / "model.safetensors").write_bytes(bytes(content))
    try:
        card = read_card(folder)
    except InvalidModel:
        return
    assert consistent(card, read_card(sound))


@examples(100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_truncated_weight_file_is_refused(folder: Path, sound: Path, data: Any) -> None:
    content = (sound / "model.safetensors").read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    drawn = data.draw(st.integers(0, header + 8) | st.integers(0, len(content) - 1))
    (folder / "model.safetensors").write_bytes(content[:drawn])
    with pytest.raises(InvalidModel):
        read_card(folder)
