"""A model's texts: its tokenizer, its chat template, and the text of an answer as its tokens come.

tokenizer.json is read by the `tokenizers` library, as the other engines do; the template is rendered as transformers
renders it (transformers 5, utils/chat_template_utils.py).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from backend.serving.openvino_program.requests import Refusal

TEMPLATE = "chat_template.jinja"
SETTINGS = "tokenizer_config.json"
SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
TAIL = 32
"""Tokens of the prompt that decide how the answer's first token is written: a leading space, bytes of a character."""


class ModelText:
    """The tokenizer and chat template in a model's folder."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._settings = _read_json(folder / SETTINGS)
        self._template = _read_template(folder, self._settings)
        self.ending_ids = _ending_ids(folder, self._settings, self._tokenizer)
        """Tokens that end an answer."""

    def encode(self, prompt: str, *, special: bool = True) -> list[int]:
        """Return the token ids of a text; `special` adds what the tokenizer puts around a text."""
        ids: list[int] = self._tokenizer.encode(prompt, add_special_tokens=special).ids
        return ids

    def encode_messages(self, messages: Sequence[dict[str, Any]], *, generation_prompt: bool = True) -> list[int]:
        """Return the token ids of messages in the chat template. Raises Refusal."""
        if self._template is None:
            raise Refusal("The model has no chat template: ask at /v1/completions.", "messages")
        import jinja2

        special = {name: _content(self._settings[name]) for name in SPECIAL if self._settings.get(name)}
        try:
            rendered = self._template.render(messages=messages, add_generation_prompt=generation_prompt, **special)
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise Refusal(f"The chat template refuses the messages: {error}", "messages") from None
        return self.encode(rendered, special=False)

    def word(self, token: int) -> str:
        """Return the text of one token by itself."""
        return str(self._tokenizer.decode([token], skip_special_tokens=False))

    def check_known(self, ids: Sequence[int]) -> None:
        """Raise Refusal for a token id that the tokenizer does not have."""
        if max(ids) >= (size := self._tokenizer.get_vocab_size()):
            raise Refusal(f"The token id {max(ids)} is not one of the {size} that the model has.", "prompt")

    def answer(self, prompt: Sequence[int], stops: tuple[str, ...]) -> AnswerText:
        """Return the text of an answer to that prompt, which is empty yet."""
        return AnswerText(self._tokenizer, prompt, stops)


class AnswerText:
    """The text of one answer, piece by piece: whole characters only, and nothing of a stop string."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int], stops: tuple[str, ...]) -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer, self._stops = tokenizer, stops
        self._stream = DecodeStream(ids=list(prompt[-TAIL:]), skip_special_tokens=True)
        self._waiting = ""
        """Text that may be the beginning of a stop string."""
        self.stopped_by: str | None = None

    def add(self, ids: Sequence[int]) -> str:
        """Return the text that the next tokens add; `stopped_by` is set where a stop string came."""
        # 1. Only the new tokens are decoded; half a character waits in the stream.
        piece = "".join(self._stream.step(self._tokenizer, token) or "" for token in ids)
        if not self._stops:
            return piece
        # 2. A stop string ends the answer before it.
        text = self._waiting + piece
        positions = [(place, stop) for stop in self._stops if (place := text.find(stop)) >= 0]
        if positions:
            place, self.stopped_by = min(positions)
            self._waiting = ""
            return text[:place]
        # 3. What may become one waits.
        waiting = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._waiting = text[len(text) - waiting :]
        return text[: len(text) - waiting]

    def finish(self) -> str:
        """Return the text that waited for a stop string that did not come."""
        rest, self._waiting = self._waiting, ""
        return rest


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of the text that begins a stop string."""
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(stop[:length])), 0)


def _read_json(path: Path) -> dict[str, Any]:
    document = json.loads(path.read_text()) if path.is_file() else {}
    return document if isinstance(document, dict) else {}


def _read_template(folder: Path, settings: dict[str, Any]) -> Any:
    """Return the compiled template; None where the model has none."""
    # 1. The file, else the setting; of several templates the default.
    source = (folder / TEMPLATE).read_text() if (folder / TEMPLATE).is_file() else settings.get("chat_template")
    if isinstance(source, list):
        source = next((row.get("template") for row in source if row.get("name") == "default"), None)
    if not source:
        return None
    # 2. A template is a program that came with the model: it sees nothing but its variables.
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)


def _content(token: Any) -> str:
    """Return a special token's text; it may be written with its options."""
    return str(token["content"] if isinstance(token, dict) else token)


def _ending_ids(folder: Path, settings: dict[str, Any], tokenizer: Any) -> frozenset[int]:
    """Return the end-of-text tokens of the generation config, the model's config and the tokenizer."""
    ids = set[int]()
    for name in ("generation_config.json", "config.json"):
        value = _read_json(folder / name).get("eos_token_id")
        ids |= {token for token in (value if isinstance(value, list) else [value]) if isinstance(token, int)}
    named = tokenizer.token_to_id(_content(settings["eos_token"])) if settings.get("eos_token") else None
    return frozenset(ids if named is None else ids | {named})
