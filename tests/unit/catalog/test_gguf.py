"""The head of a GGUF file is read within bounds, and what cannot be converted is refused by name before any work."""

import struct
from pathlib import Path

import pytest

from backend.catalog.cards import gguf
from backend.domain.errors import InvalidModel
from tests import gguf_files
from tests.tiny import tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


def test_the_card_and_the_former_quantization_are_read(tmp_path: Path, model: Path) -> None:
    path = tmp_path / "Tiny-1M.Q4_1.gguf"
    gguf_files.write(path, model)
    head = gguf.read_head(path)
    card = gguf.card(head, gguf.name_of(path))
    assert (card.id, card.model_type, card.layers, card.hidden_size, card.vocabulary) == ("Tiny-1M", "llama", 2, 128, 320)
    assert card.quantized_before and (card.quantized_before.format, card.quantized_before.block) == ("Q4_1", 32)
    assert "quantized to Q4_1 (blocks of 32, 5 bits" in card.quantized_before.sentence
    assert (card.licence, card.dtype, card.weights_bytes) == ("apache-2.0", "bfloat16", 2 * card.parameters)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        *(
            ({"architecture": kind}, f"architecture `{kind}`: GGUF files of llama, qwen2, qwen3 can be imported")
            for kind in ("mamba", "gemma", "gemma2", "gemma3", "mistral3")
        ),
        ({"extra": {"llama.block_count": 0}}, "no sound `llama.block_count`"),
    ],
)
def test_what_cannot_be_converted_is_refused_by_name(tmp_path: Path, model: Path, change: dict[str, object], said: str) -> None:
    path = tmp_path / "x.gguf"
    gguf_files.write(path, model, **change)  # type: ignore[arg-type]
    with pytest.raises(InvalidModel) as refused:
        gguf.card(gguf.read_head(path), "x")
    assert said in str(refused.value)


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
        gguf.read_head(path)


def test_every_cut_of_a_file_is_refused(tmp_path: Path, model: Path) -> None:
    path = tmp_path / "x.gguf"
    gguf_files.write(path, model)
    content = path.read_bytes()
    for size in [*range(0, 400, 7), 6000, len(content) // 2, len(content) - 4096]:
        path.write_bytes(content[:size])
        with pytest.raises(InvalidModel):
            gguf.read_head(path)
