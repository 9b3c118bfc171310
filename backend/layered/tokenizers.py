"""Loads a model's tokenizer as its own tokenizer.json says, whatever class is named for it; and writes chat templates.

transformers 5 builds the class that tokenizer_config.json or the model's type names. Many classes take only the
vocabulary from tokenizer.json and rebuild the normalizer, the pre-tokenizer and the decoder (transformers 5.17,
transformers/tokenization_utils_tokenizers.py, convert_to_native_format). A byte-level file under
`LlamaTokenizerFast` then loses every space. Knows no weights.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from backend import files
from backend.domain.errors import InvalidModel

FILE, SETTINGS = "tokenizer.json", "tokenizer_config.json"
LINES = (
    "def f(x): return x ** 2",
    "if x:\n    return  x\n\n\tend",
    "  two leading spaces,   three inside",
    "Café naïve Ελληνικά, don't",
    "東京は日本の首都です。",
    "🙂👩‍💻 done",
    "3,141.59 in 2024: 1234567890",
)
"""Texts that are encoded by class and by file to compare both: code, spaces, accents, contractions, scripts, emoji,
digits, line breaks."""
PARTS = ("normalizer", "pre_tokenizer", "decoder")
OPTIONS = (
    "unk_token",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "fuse_unk",
    "byte_fallback",
    "ignore_merges",
    "dropout",
    "max_input_chars_per_word",
    "unk_id",
)
"""Settings of the four kinds of models of the `tokenizers` library."""
SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")
PORTABLE = "PreTrainedTokenizerFast"
"""The class that takes tokenizer.json as it is, under the name that transformers 4 and 5 both know."""
COPIED = (FILE, "special_tokens_map.json", "added_tokens.json", "chat_template.json", "chat_template.jinja")
SENTENCEPIECE = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
TEMPLATES = "additional_chat_templates"
MANY_BYTES = 128_000_000
"""A tokenizer_config.json or tokenizer.json beyond it is no tokenizer's."""


class Reading(NamedTuple):
    """`own`: tokenizer.json is taken as it is, since the class that is named for it is made otherwise.

    `named` is that class. `differs` says on what text they were seen to differ, or why the class cannot be built; None
    where only their settings differ, or nothing does.
    """

    tokenizer: Any
    own: bool
    named: str
    differs: str | None = None

    @property
    def sentence(self) -> str | None:
        """Return what a person is told; None where class and file read alike."""
        if self.differs is None:
            return None
        return (
            f"Its tokenizer class {self.named} does not read text as its tokenizer.json does: {self.differs}. "
            "tokenizer.json is taken as it is, for calibration, scoring and serving."
        )


def load(folder: Path) -> Any:
    """Load the tokenizer that the folder's own files describe. Raises InvalidModel if none can be built from them.

    Its `embedding_rows` says how many tokens the model knows, None where config.json does not.
    """
    return read(folder).tokenizer


def read(folder: Path) -> Reading:
    """Load the tokenizer, and say how it was read."""
    reading = _read(folder)
    reading.tokenizer.embedding_rows = _embedding_rows(folder)
    return reading


def _embedding_rows(folder: Path) -> int | None:
    """The vocabulary of config.json, of a multimodal model its text part's."""
    path = folder / "config.json"
    config = json.loads(path.read_bytes()) if path.is_file() else {}
    inner = config.get("text_config")
    rows = (inner if isinstance(inner, dict) else config).get("vocab_size", config.get("vocab_size"))
    return rows if type(rows) is int else None


def _read(folder: Path) -> Reading:
    # 1. Refuse files that are no tokenizer's.
    for name in (FILE, SETTINGS):
        if (folder / name).is_file() and (folder / name).stat().st_size > MANY_BYTES:
            raise InvalidModel(f"{name} has more than {MANY_BYTES // 1_000_000} MB, which no tokenizer has.")

    # 2. Without tokenizer.json there is only the class that transformers chooses.
    built = _by_class(folder)
    if not (folder / FILE).is_file():
        if isinstance(built, Exception):
            why = _lacking(folder) or _first(built)
            raise InvalidModel(
                f"No tokenizer can be built from the files of {folder.name} ({why}): save it with a tokenizer.json, "
                "which `AutoTokenizer.from_pretrained(...).save_pretrained(...)` writes where its library is installed."
            )
        return Reading(built, False, type(built).__name__)

    # 3. The chosen class may be the one that takes tokenizer.json as it is; else compare both.
    from transformers import PreTrainedTokenizerFast

    if type(built) is PreTrainedTokenizerFast:
        return Reading(built, False, type(built).__name__)
    try:
        own = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001  the library raises nothing narrower
        raise InvalidModel(
            f"tokenizer.json of {folder.name} cannot be read ({_first(error)}): download or export the model again."
        ) from None
    return _compared(folder, built, own)


def _by_class(folder: Path) -> Any:
    """Load the tokenizer by the class that transformers chooses, or return what it raises."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001  every class raises what it likes
        return error


def _lacking(folder: Path) -> str | None:
    """The library that a sentencepiece model needs, where it is not installed."""
    file = next((name for name in SENTENCEPIECE if (folder / name).is_file()), None)
    if file is None or find_spec("sentencepiece") is not None:
        return None
    return f"{file} needs the sentencepiece library, which is not installed here"


def _first(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip().rstrip(".:")[:200] if lines else type(error).__name__


def _compared(folder: Path, built: Any, own: Any) -> Reading:
    """Choose the tokenizer `built` by the class if it reads as the file says, else the file's `own`."""
    # 1. A class that cannot be built decides nothing.
    if isinstance(built, Exception):
        settings = folder / SETTINGS
        named = json.loads(settings.read_bytes()).get("tokenizer_class") if settings.is_file() else None
        return Reading(own, True, str(named or "(by the model's type)"), f"it cannot be built ({_first(built)})")

    # 2. Keep the class's if both read alike.
    differs = _difference(built, own)
    if differs is None and _settings(built) == _settings(own):
        return Reading(built, False, type(built).__name__)

    # 3. Else take the file's, with the special tokens that only the class knows.
    vocabulary = own.get_vocab()
    for name in SPECIAL:
        token = getattr(built, name)
        if getattr(own, name) is None and token in vocabulary:
            setattr(own, name, token)
    return Reading(own, True, type(built).__name__, differs)


def _difference(built: Any, own: Any) -> str | None:
    """The first of LINES that both do not read alike, and how; None where they read all alike."""
    for line in LINES:
        text = _text(built, line)
        if text != _text(own, line):
            return f"{line[:40]!r} comes back as {text[:40]!r}"
        if _ids(built, line) != _ids(own, line):
            return f"{line[:40]!r} becomes other tokens"
    return None


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _text(tokenizer: Any, text: str) -> str:
    decoded: str = tokenizer.decode(_ids(tokenizer, text), clean_up_tokenization_spaces=False)
    return decoded


def _settings(tokenizer: Any) -> list[Any]:
    """Return what decides the ids of any text, as values to compare; None of a tokenizer that is not of the
    `tokenizers` library."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return [None]
    parts = [getattr(backend, name) for name in PARTS]
    states = [None if part is None else _plain(json.loads(part.__getstate__())) for part in parts]
    options = [getattr(backend.model, name, None) or None for name in OPTIONS]
    return [*states, type(backend.model).__name__, options, backend.get_vocab(with_added_tokens=True)]


def _plain(state: Any) -> Any:
    """Without what changes no token: where a token stands in the text (`trim_offsets`), and a sequence of one."""
    if isinstance(state, list):
        return [_plain(item) for item in state]
    if not isinstance(state, dict):
        return state
    for inner in ("normalizers", "pretokenizers", "decoders"):
        if isinstance(state.get(inner), list) and len(state[inner]) == 1:
            return _plain(state[inner][0])
    return {name: _plain(value) for name, value in state.items() if name != "trim_offsets"}


def prepared(folder: Path, cache: Path) -> Path | None:
    """A folder below `cache` from which transformers builds what `load` gives; None where it does so from the model's
    own.

    A server and lm-eval load a tokenizer by its folder. The model's type can choose the class as well (Qwen2 does), so
    this one has no config.json of a model. The user's files stay as they are. Made once for the same files.
    """
    into = cache / digest(folder)[:24]
    if not into.exists():
        reading = read(folder)
        with files.staged_folder(into) as staging:
            if reading.own:
                write(folder, reading.tokenizer, staging)
                (staging / "config.json").write_text("{}\n")
    return into if (into / FILE).is_file() else None


def is_prepared(folder: Path, cache: Path) -> bool:
    """Tell whether `prepared` finds what it made before, and so needs no library."""
    return (cache / digest(folder)[:24]).exists()


def digest(folder: Path) -> str:
    """sha256 over all that decides how text is read: the tokenizer's files, config.json and the release of
    transformers."""
    digest = hashlib.sha256(version("transformers").encode())
    for path in (folder / "config.json", *_files(folder)):
        content = path.read_bytes() if path.is_file() else b""
        digest.update(f"{path.relative_to(folder)} {len(content)} ".encode() + content)
    return digest.hexdigest()


def _files(folder: Path) -> list[Path]:
    """The files that make a tokenizer, those that are there."""
    named = [folder / name for name in (*COPIED, SETTINGS, "tokenizer.model", "vocab.json", "merges.txt", "vocab.txt")]
    return [path for path in [*named, *sorted((folder / TEMPLATES).glob("*.jinja"))] if path.is_file()]


def complete_copy(folder: Path, into: Path) -> None:
    """Complete an artifact's copied tokenizer files: further chat templates, and a class that reads as `load` does."""
    _copy_templates(folder, into)
    reading = read(folder)
    if reading.own:
        write(folder, reading.tokenizer, into)


def write(folder: Path, tokenizer: Any, into: Path) -> None:
    """Write the files of a tokenizer whose tokenizer.json counts into `into`, under a class that takes it as it is."""
    for name in COPIED:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, into / name)
    _copy_templates(folder, into)
    settings = json.loads((folder / SETTINGS).read_bytes()) if (folder / SETTINGS).is_file() else {}
    settings = {name: value for name, value in settings.items() if name != "auto_map"} | {"tokenizer_class": PORTABLE}
    special = {name: getattr(tokenizer, name) for name in SPECIAL if not settings.get(name)}
    settings |= {name: token for name, token in special.items() if token is not None}
    (into / SETTINGS).write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _copy_templates(folder: Path, into: Path) -> None:
    """The chat templates beside the default one, which transformers keeps in a folder of their own."""
    for path in (folder / TEMPLATES).glob("*.jinja"):
        (into / TEMPLATES).mkdir(exist_ok=True)
        shutil.copyfile(path, into / TEMPLATES / path.name)


def beginning_tokens(loaded: Any) -> list[int]:
    """Return what the tokenizer puts before every text by itself: the token for its beginning (Gemma, Llama 3), or
    nothing."""
    first, begin = list(loaded("a")["input_ids"])[:1], loaded.bos_token_id
    return first if begin is not None and first == [begin] else []


class NoChat(Exception):
    """A chat cannot be written in the template; the message says why."""


def format_chat(loaded: Any, turns: Sequence[tuple[str, str]], *, answer_follows: bool = False) -> str:
    """Write a conversation of (role, text) turns in the tokenizer's chat template, as vLLM 0.32 does.

    Where the template takes a turn's content as a list of typed parts, it is given so (vLLM, renderers/hf.py, content
    format "openai"). Raises NoChat where the template raises, or leaves a text out.
    """
    if not loaded.chat_template:
        raise NoChat("it has none")
    why = "it leaves out what is said"
    # Try content as text, then as typed parts; the first form that holds every text is taken.
    for typed in (False, True):
        messages = [
            {"role": role, "content": [{"type": "text", "text": text}] if typed else text} for role, text in turns
        ]
        try:
            rendered: str = loaded.apply_chat_template(messages, tokenize=False, add_generation_prompt=answer_follows)
        except Exception as error:  # noqa: BLE001  a template raises what it likes
            why = _first(error)
            continue
        if all(text.strip() in rendered for _, text in turns):
            _check_known(loaded, rendered)
            return rendered
    raise NoChat(why)


def _check_known(loaded: Any, text: str) -> None:
    """Raise NoChat where a token of the text has no embedding."""
    rows = getattr(loaded, "embedding_rows", None)
    beyond = [number for number in _ids(loaded, text) if rows is not None and number >= rows]
    if beyond:
        raise NoChat(
            f"it writes {loaded.convert_ids_to_tokens(beyond[0])}, token {beyond[0]}, and the embedding has {rows} rows"
        )


def chat_problem(loaded: Any) -> str | None:
    """Return why a plain question and its answer cannot be written in the chat template; None where they can, or there
    is none."""
    if not loaded.chat_template:
        return None
    if isinstance(loaded.chat_template, dict) and "default" not in loaded.chat_template:
        return f"it has none called `default`, only {', '.join(sorted(loaded.chat_template))}"
    try:
        format_chat(loaded, [("user", "What is asked?"), ("assistant", "What is answered.")])
        format_chat(loaded, [("user", "What is asked?")], answer_follows=True)
    except NoChat as error:
        return str(error)
    return None


def format_answered(loaded: Any, prompt: str, answer: str) -> str:
    """Write a prompt and its answer in the chat template; one under the other if it has none that can write them."""
    try:
        return format_chat(loaded, [("user", prompt), ("assistant", answer)])
    except NoChat:
        return f"{prompt}\n{answer}\n"
