"""The check of a model's files before any job: tensors against config, tokenizer, chat template, positions.

Runs in the limited child (`sandbox`): what the files hold is read by transformers, without weights and without code of
theirs. Values that are not finite are seen only when weights are read, so not here. Knows no recipes and no store.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backend import sandbox
from backend.domain.errors import ImpossibleStack, InvalidModel, TooDemanding, WhetstoneError
from backend.domain.model.facts import ModelCard
from backend.domain.model.preflight import Preflight
from backend.domain.recipe.recipe import Quantize
from backend.layered import dequantize, tokenizers, weightless_model
from backend.layered.sources import language_part

FORM = 2
"""Version of the answer: a new one invalidates cached answers."""
CPU_S = 60
"""Importing torch and transformers takes 4 of them, a model of 400 shards another."""
MEMORY_BYTES = 8 * 2**30
"""Address space: torch takes 0.9 GB of it, the outline of 40,000 linears another."""
MAPPINGS = 3
"""Mappings of a weight file at the same time, which take address space and no memory: safetensors does, and torch
again."""
WINDOW = int(Quantize.model_fields["length"].default)
"""Tokens of a sequence that calibrates or is scored."""
SHOWN = 3
"""Names that a sentence lists."""


def inspect_in_sandbox(card: ModelCard) -> Preflight:
    """Check the model of that card in the sandbox. Raises InvalidModel, TooDemanding."""
    largest = max((path.stat().st_size for path in Path(card.path).glob("*.safetensors")), default=0)
    memory_bytes = MEMORY_BYTES + MAPPINGS * largest
    answer = sandbox.run(inspect, card_facts(card), about=card.id, cpu_s=CPU_S, memory_bytes=memory_bytes)
    return Preflight.model_validate(answer)


def card_facts(card: ModelCard) -> dict[str, Any]:
    """Return the facts of the card that `inspect` needs."""
    plain = card.quantization is None and card.stored is None
    return {"path": card.path, "vocabulary": card.vocabulary, "positions": card.max_positions, "plain": plain}


def cache_key(card: ModelCard) -> str:
    """Compute the cache key of an answer: from the model's config and headers, its tokenizer's files, and what reads
    them."""
    return hashlib.sha256(f"{FORM} {card.revision} {tokenizers.digest(Path(card.path))}".encode()).hexdigest()


def inspect(known: Mapping[str, Any]) -> dict[str, Any]:
    """`inspect_in_sandbox`, in this process; `known` are the `card_facts` of its card. Raises InvalidModel."""
    folder, vocabulary, positions = Path(known["path"]), known["vocabulary"], known["positions"]

    # The model, its weights as they are stored against its modules.
    refusal, unbuilt, unrewritable = _built(folder, plain=known["plain"])

    # The tokenizer and its chat template.
    no_chat, notes = None, list[str]()
    if refusal is None:
        try:
            no_chat, notes = _text(folder, vocabulary)
        except InvalidModel as error:
            refusal = str(error)
    if positions < WINDOW:
        notes.append(
            f"It has {positions} positions: calibration and scoring take sequences of {positions} tokens in place of "
            f"{WINDOW}."
        )
    sound = refusal is None and unbuilt is None and unrewritable is None
    answer = Preflight(
        refusal=refusal,
        unbuilt=unbuilt,
        unrewritable=unrewritable,
        further_heads=sound and known["plain"] and _has_further_heads(folder),
        no_chat=no_chat,
        notes=tuple(notes),
    )
    return answer.model_dump(mode="json")


def _has_further_heads(folder: Path) -> bool:
    """Return whether the files of a sound model hold what predicts further tokens."""
    config = json.loads((folder / "config.json").read_bytes())
    names = dequantize.open_plain(folder).tensors
    return bool(config.get("num_nextn_predict_layers")) or any(map(language_part.is_head, names))


def _built(folder: Path, *, plain: bool) -> tuple[str | None, str | None, str | None]:
    """Return (refusal, unbuilt, unrewritable) of the model as transformers builds it, without weights; `plain`: not
    quantized."""
    if padding := _padding(folder):
        return None, padding, None
    try:
        config = weightless_model.read_config(folder)
    except InvalidModel as error:
        return str(error), None, None
    try:
        misshapen = _outlined(folder)
        return (misshapen, None, None) if plain else (None, None, misshapen)
    except ImpossibleStack as error:
        if not plain:  # the rules refuse such weights by name
            return None, None, None
        built = weightless_model.problem(config)
        return None, built, None if built else str(error)
    except WhetstoneError as error:
        _check_memory(folder, error)
        return (str(error), None, None) if plain else (None, None, str(error))
    except Exception as error:  # noqa: BLE001  what a model's class raises while it is built
        _check_memory(folder, error)
        sentence = weightless_model.cannot_build(error)
        return (None, sentence, None) if plain else (None, None, sentence)


def _check_memory(folder: Path, error: Exception) -> None:
    """Raise TooDemanding if memory ran out, which says nothing of the model."""
    if isinstance(error, MemoryError) or "allocate memory" in str(error):
        raise TooDemanding(
            f"{folder.name} takes more memory to look at than a look may take: its files are too large."
        ) from None


def _padding(folder: Path) -> str | None:
    """Return a refusal of a `pad_token_id` beyond the vocabulary, for which torch makes no embedding."""
    config = json.loads((folder / "config.json").read_bytes())
    padding, vocabulary = config.get("pad_token_id"), config.get("vocab_size")
    if type(padding) is not int or type(vocabulary) is not int or -vocabulary <= padding < vocabulary:
        return None
    return (
        f"config.json says `pad_token_id` {padding}, and the vocabulary has {vocabulary} tokens: take that line out, "
        "since nothing is padded here."
    )


def _outlined(folder: Path) -> str | None:
    """Return why the stored tensors are not those that the model's modules need; None where all are, in the shapes of
    config.json.

    Raises ImpossibleStack for a family or layout that has no outline, ModelDamaged for a tensor that is missing or left
    over.
    """
    from backend.layered.outline import Outline

    outline = Outline(dequantize.open_plain(folder))
    tensors, packed = outline.source.tensors, getattr(outline.source, "parts", {})
    for name, shape in outline.stored_shapes():
        if name in tensors and name not in packed and tensors[name].shape != shape:
            has, needs = (" x ".join(map(str, sizes)) for sizes in (tensors[name].shape, shape))
            return (
                f"{name} is stored as {has}, and config.json asks for {needs}: config.json and the weights belong to "
                "different models."
            )
    return None


def _text(folder: Path, vocabulary: int) -> tuple[str | None, list[str]]:
    """Return (no_chat, notes) of the tokenizer and its chat template. Raises InvalidModel if no tokenizer can be
    built."""
    # 1. The tokenizer: its tokens must have a row in the embedding.
    reading = tokenizers.read(folder)
    loaded = reading.tokenizer
    notes = [reading.sentence] if reading.sentence else []
    beyond = sorted(((number, token) for token, number in loaded.get_vocab().items() if number >= vocabulary))
    if beyond:
        named = ", ".join(f"{token} ({number})" for number, token in beyond[:SHOWN])
        more = f" and {len(beyond) - SHOWN} more" if len(beyond) > SHOWN else ""
        notes.append(
            f"Its tokenizer has tokens beyond the embedding, which has {vocabulary} rows: "
            f"{named}{more}. Text that holds them cannot be read by the model."
        )
    # 2. The chat template.
    problem = tokenizers.chat_problem(loaded)
    if problem is None:
        return None, notes
    sentence = (
        f"Its chat template cannot write a plain chat ({problem}): calibration and scoring take text without it, and "
        "it is asked for completions."
    )
    return sentence, notes
