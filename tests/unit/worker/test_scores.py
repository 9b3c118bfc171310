"""The scores of an evaluation: on which text, begun as the model expects it, and not computed where the artifact has
them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend.artifacts import artifact_folder
from backend.catalog.cards.card import read_card
from backend.catalog.text import held_out_text
from backend.domain.errors import InvalidWorkload
from backend.domain.evaluation.document import Variant
from backend.domain.jobs.artifact import Manifest
from backend.domain.jobs.progress import NoProgress
from backend.domain.recipe.recipe import Recipe
from backend.evaluate.quality.scoring import window_tokens
from backend.layered import tokenizers
from backend.worker.measuring import quality
from backend.worker.optimizing import calibration
from tests.tiny import TEXT, begins_texts, tiny_llama

SHAPE: dict[str, Any] = {"hidden": 32, "heads": 2, "kv_heads": 1, "intermediate": 64}
TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"


class Phases(NoProgress):
    def __init__(self) -> None:
        self.seen = list[str]()

    def phase(self, name: str, message: str, **_: Any) -> None:
        self.seen.append(name)


def variant(model: Path, original: Path) -> Variant:
    kind: Any = "model" if model == original else "artifact"
    return Variant(name=kind, source=kind, kind=kind, model_path=str(model), original_path=str(original))


def test_what_the_manifest_says_is_not_scored_again(tmp_path: Path) -> None:
    original = tiny_llama(tmp_path / "original", **SHAPE)
    created = tiny_llama(tmp_path / "a" / "model", seed=1, **SHAPE)
    text = held_out_text.read("code", original)
    scores = {
        "perplexity_before": 40.0,
        "perplexity_after": 41.0,
        "kl_mean": 0.02,
        "kl_ci95": (0.01, 0.03),
        "kl_median": 0.01,
        "kl_p99": 0.1,
        "kl_p999": 0.2,
        "same_top": 0.95,
        "same_top_ci95": (0.94, 0.96),
        "text": "code",
        "text_sha256": text.sha256,
    }
    recipe = Recipe(name="made", steps=())
    manifest = Manifest(
        job="j-1",
        parent=read_card(original),
        recipe=recipe,
        recipe_hash=recipe.hash,
        files=[],
        bytes_before=1,
        bytes_after=1,
        quality=scores,
    )
    artifact_folder.write_manifest(created.parent, manifest)
    progress = Phases()
    result = quality.measure_quality([variant(original, original), variant(created, original)], progress, tmp_path)
    assert progress.seen == [], "neither of the two is computed"
    assert (result[1].perplexity, result[1].kl_p999, result[1].same_top, result[1].text) == (41.0, 0.2, 0.95, "code")
    assert (result[0].perplexity, result[0].kl_mean, result[0].scored) == (40.0, 0.0, "original")
    mine = tmp_path / "mine.txt"
    mine.write_text(TEXT * 40)
    other = quality.measure_quality(
        [variant(original, original), variant(created, original)], progress, tmp_path, text=str(mine)
    )
    assert progress.seen and other[1].text == "mine.txt" and other[1].perplexity != 41.0


def test_a_chat_model_is_scored_on_chat_in_its_template_and_on_prose(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model", **SHAPE)
    assert held_out_text.read(None, model).name == "code"
    (model / "chat_template.jinja").write_text(TEMPLATE)
    content = held_out_text.read(None, model)
    assert content.name == "chat and prose" and content.sha256 != held_out_text.read("code", model).sha256
    written = tokenizers.format_answered(tokenizers.load(model), "How?", "So.")
    assert written == "<user>How?\n<assistant>So.\n"
    request = content.documents[0]
    assert isinstance(request, held_out_text.Answered)
    tokens = window_tokens(model, [request], 16, None).flatten().tolist()
    assert tokenizers.load(model).decode(tokens).startswith(f"<user>{request.prompt[:40]}")


def test_a_chat_model_is_calibrated_on_chat_in_its_template(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model", **SHAPE)
    assert not any("<user>" in text for text in calibration.texts(None, model))
    (model / "chat_template.jinja").write_text(TEMPLATE)
    texts = calibration.texts(None, model)
    assert sum(text.startswith("<user>") for text in texts) == 64 and "<assistant>" in texts[0]
    mine = tmp_path / "mine.jsonl"
    mine.write_text('{"prompt": "How?", "answer": "So."}\n{"text": "plain"}\n')
    assert calibration.texts(str(mine), model) == ["<user>How?\n<assistant>So.\n", "plain"]


def test_every_window_begins_as_the_tokenizer_begins_a_text(tmp_path: Path) -> None:
    """Gemma's and Llama 3's put a token first, without which what they say is poor."""
    model = tiny_llama(tmp_path / "model", **SHAPE)
    plain = window_tokens(model, TEXT, 16, None)
    begins_texts(model)
    tokens = window_tokens(model, TEXT, 16, None)
    assert tokens.shape[1] == 16 and tokens[:, 0].tolist() == [0] * len(tokens)
    assert tokens[0, 1:].tolist() == plain[0, :15].tolist()


@pytest.mark.parametrize(
    ("content", "why"),
    [('{"prompt": "a"}\n{"prompt": " ", "answer": 3}', "Line 2 of mine.jsonl is empty"), ("[]", "not an object")],
)
def test_a_held_out_file_that_will_not_do_is_refused(tmp_path: Path, content: str, why: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(content)
    with pytest.raises(InvalidWorkload, match=why):
        held_out_text.check(str(path))
    held_out_text.check("prose")


def test_no_bundled_text_stands_in_what_calibrates() -> None:
    assert {name for named in held_out_text.BUNDLED.values() for name in named} <= {
        path.name for path in held_out_text.FOLDER.iterdir()
    }
    assert all("calibration" not in name for named in held_out_text.BUNDLED.values() for name in named)
