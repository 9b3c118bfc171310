"""The calibration tokens, and the two forms of the calibration loss: Gram matrix and the tokens themselves."""

from __future__ import annotations

from pathlib import Path

import torch

from backend.engines.native import calibration
from backend.engines.native.group import Stats
from backend.settings import ASSETS
from tests.tiny import TEXT, begins_texts, tiny_llama


def test_the_token_form_is_the_same_loss_as_the_gram_form() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, error = torch.randn(64, 24, generator=generator), torch.randn(8, 24, generator=generator)
    observed = (len(rows), rows.abs().mean(0), rows.abs().amax(0))
    gram, tokens = Stats(*observed, gram=rows.T @ rows), Stats(*observed, rows=rows)
    assert abs(gram.squared(error) / tokens.squared(error) - 1) < 1e-4
    torch.testing.assert_close(gram.matrix(), tokens.matrix())
    columns = torch.rand(24, generator=generator) + 0.5
    assert abs(gram.scaled(columns).squared(error * columns) / tokens.squared(error) - 1) < 1e-4


def test_the_tokens_are_those_of_the_models_own_tokenizer() -> None:
    from transformers import AutoTokenizer

    folder, texts = ASSETS / "starter" / "target", ["def f(x):\n    return x + 1  # naïve ✓\n", "<|endoftext|> again"]
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    expected = [
        token
        for text in texts
        for token in [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    ]
    tokens = calibration.sample_tokens(folder, texts, len(expected), 1, 0)
    assert tokens.flatten().tolist() == expected


def test_every_window_begins_as_the_tokenizer_begins_a_text(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model", hidden=32, heads=2, kv_heads=1, intermediate=64)
    plain = calibration.sample_tokens(model, [TEXT], 1000, 16, 0).flatten().tolist()
    begins_texts(model)
    for result in (
        calibration.sample_tokens(model, [TEXT], 1000, 16, 0),
        *calibration.divide_tokens(model, [TEXT], 5, 16, 0),
    ):
        assert result.shape[1] == 16 and result[:, 0].tolist() == [0] * len(result)
    result = calibration.sample_tokens(model, [TEXT], 1000, 16, 0)[:, 1:].flatten().tolist()
    assert result[: len(plain)] == plain[: len(result)] and abs(len(result) - len(plain)) <= 16, "all of the text, once"
