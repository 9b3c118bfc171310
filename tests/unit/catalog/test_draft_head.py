"""Heads are read by their config.json and headers, in the forms in which they are published, and what is no head says
so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend.catalog.cards.draft_head import read_head
from backend.domain.errors import InvalidModel, UnknownModel
from tests.heads import head

LLAMA = {
    "hidden_size": 64,
    "vocab_size": 320,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
}


@pytest.mark.parametrize(
    ("config", "trained_for", "layers", "cached", "rows"),
    [
        ({**LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 100}, (64, 320), 1, 1, 100),
        ({**LLAMA, "target_hidden_size": 96}, (96, 320), 1, 1, 320),
        (
            {"speculators_model_type": "eagle3", "transformer_layer_config": LLAMA, "draft_vocab_size": 100},
            (64, 320),
            1,
            1,
            100,
        ),
        (
            {"model_type": "medusa", "hidden_size": 64, "vocab_size": 320, "num_heads": 4, "num_hidden_layers": 1},
            (64, 320),
            1,
            0,
            320,
        ),
    ],
)
def test_a_heads_card_says_what_it_was_trained_for(
    tmp_path: Path, config: dict[str, Any], trained_for: tuple[int, int], layers: int, cached: int, rows: int
) -> None:
    card = read_head(head(tmp_path / "head", config))
    assert card.head_of is not None and (card.head_of.hidden_size, card.head_of.vocabulary) == trained_for
    assert (card.layers, card.cached_layers, card.vocabulary) == (layers, cached, rows)
    assert card.head_of.tokens == config.get("num_heads") and card.model_type in {"eagle", "eagle3", "medusa"}
    assert (card.parameters, card.id, card.tokenizer_hash) == (64 * 64, "head", None)


def test_what_is_no_head_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match="There is no folder"):
        read_head(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidModel, match=r"has no config\.json"):
        read_head(tmp_path / "empty")
    folder = head(tmp_path / "odd", {"hidden_size": "wide"})
    with pytest.raises(InvalidModel, match="no usable `hidden_size`"):
        read_head(folder)
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (folder / "model.safetensors").unlink()
    with pytest.raises(InvalidModel):
        read_head(folder)
