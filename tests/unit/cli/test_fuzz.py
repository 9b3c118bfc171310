"""Seeded bad input for the command line and for every kind of file: a sentence or an answer, never a traceback, never a
hang.

160 in the campaign, of which a small share runs everywhere; WHETSTONE_FUZZ says how many else. A seed that
fails is repeated by its number.
"""

from __future__ import annotations

import json
import os
import random
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from backend.catalog.cards import gguf
from backend.catalog.cards.card import read_card
from backend.catalog.text import calibration_text, token_lengths
from backend.domain.errors import WhetstoneError
from backend.service.evaluations import imported_results, workload_files
from backend.service.plans import recipe_files
from backend.service.presets import preset_text
from backend.service.tasks import task_files
from backend.settings import ASSETS
from tests import gguf_files
from tests.helpers.imported_files import RECORDED
from tests.homes import open_home
from tests.integration.cli.calling import whetstone
from tests.tiny import tiny_llama

pytestmark = pytest.mark.process
QUICK, ALL = 6, int(os.environ.get("WHETSTONE_FUZZ", "160"))
HANGS_S, PATIENCE_S, MEMORY_KB = 10.0, 120.0, 1_000_000
"""Of the processor, children included, since other tests may run beside this one; of the clock; of memory."""
NASTY: list[Any] = [
    None,
    True,
    0,
    -1,
    1,
    2**31,
    2**63,
    -(2**63),
    10**400,
    0.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    "",
    " ",
    "a",
    "-",
    "--x",
    "..",
    "../../x",
    "/dev/zero",
    "/dev/null",
    "http://[::1",
    "https://example.org/x",
    "`![x](http://x)`",
    "\u202e",
    "\ud800",
    "é" * 9,
    "x" * 100_000,
    [],
    [[]],
    [None],
    {},
    {"a": {}},
    {"": ""},
    ["a"] * 1000,
    {"a": [1, {"b": 2}]},
]
WORDS = [str(value) for value in NASTY if isinstance(value, str | int | float) and "\ud800" not in str(value)][:-1] + [
    "x" * 2000
]
COMMANDS = (
    ["catalog", "list", "--search", "?"],
    ["catalog", "list", "--technique", "?"],
    ["catalog", "list", "--instance", "?"],
    ["catalog", "list", "--min-size", "?"],
    ["catalog", "show", "?"],
    ["models", "forget", "?"],
    ["jobs", "list", "--limit", "?"],
    ["jobs", "list", "--state", "?"],
    ["jobs", "show", "?"],
    ["jobs", "cancel", "?"],
    ["artifacts", "show", "?"],
    ["artifacts", "delete", "?"],
    ["presets", "show", "?"],
    ["presets", "list", "--model", "?"],
    ["presets", "remove", "?"],
    ["presets", "apply", "?", "--target", "?"],
    ["prices", "list", "--region", "?"],
    ["engines", "install", "?"],
    ["recipe", "check", "?"],
    ["recipe", "check", "awq", "--model", "?"],
    ["recipe", "check", "awq", "--target", "?"],
    ["recipe", "estimate", "awq", "--input-tokens", "?"],
    ["recipe", "estimate", "awq", "--concurrency", "?"],
    ["recipe", "estimate", "awq", "--price-per-hour", "?"],
    ["recipe", "estimate", "awq", "--acceptance", "?"],
    ["recipe", "estimate", "awq", "--target", "auto", "--max-ttft-ms", "?"],
    ["report", "?"],
    ["portfolio", "?", "--max-kl", "?"],
    ["bench", "?"],
    ["optimize", "starter", "--recipe", "?", "--dry-run"],
    ["optimize", "starter", "--recipe", "awq", "--auto-bits", "?", "--dry-run"],
    ["bench", "http://127.0.0.1:9", "--concurrency", "?"],
    ["bench", "http://127.0.0.1:9", "--rate", "?"],
    ["bench", "http://127.0.0.1:9", "--workload", "?"],
    ["bench", "http://127.0.0.1:9", "--sweep", "?"],
    ["bench", "http://127.0.0.1:9", "--max-tokens", "?"],
    ["bench", "http://127.0.0.1:9", "--ramp", "?"],
    ["bench", "http://127.0.0.1:9", "--columns", "?"],
    ["bench", "http://127.0.0.1:9", "--bearer-env", "?"],
    ["bench", "http://127.0.0.1:9", "--seconds", "?"],
    ["bench", "http://127.0.0.1:9", "--timeout", "?"],
    ["up", "--host", "?"],
)
JSONL = b'{"prompt": "a", "max_tokens": 3}\n{"turns": ["a", "b"], "system": "s", "timestamp": 1.5}\n'
CSV = b"prompt,max_tokens,timestamp\na,3,1.5\nb,4,2026-01-01T00:00:00\n"
TASK = {
    "task": "sums",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "sums.jsonl"}},
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{q}}",
    "doc_to_choice": "{{c}}",
    "doc_to_target": "{{a}}",
    "metric_list": [{"metric": "acc"}],
    "filter_list": [{"name": "none"}],
    "generation_kwargs": {"until": ["x"]},
}


def changed(document: Any, dice: random.Random) -> Any:
    """The document with one to three of its values, wherever they are, taken out, exchanged or wrapped."""
    document = json.loads(json.dumps(document))
    for _ in range(dice.randint(1, 3)):
        place, key = _somewhere(document, dice)
        if place is None:
            return dice.choice(NASTY)
        match dice.randrange(4):
            case 0:
                del place[key]
            case 1:
                place[key] = [place[key]]
            case _:
                place[key] = dice.choice(NASTY)
        if isinstance(place, dict) and dice.random() < 0.2:
            place[str(dice.choice(NASTY))[:50]] = dice.choice(NASTY)
    return document


def _somewhere(document: Any, dice: random.Random) -> tuple[Any, Any]:
    place: Any = document
    while isinstance(place, dict | list) and place:
        key = dice.choice(list(place)) if isinstance(place, dict) else dice.randrange(len(place))
        if not isinstance(place[key], dict | list) or not place[key] or dice.random() < 0.3:
            return place, key
        place = place[key]
    return None, None


def damaged(content: bytes, dice: random.Random) -> bytes:
    """Bytes exchanged, cut off, doubled, or with something strange between them."""
    buffer = bytearray(content)
    for _ in range(dice.randint(1, 8)):
        at = dice.randrange(len(buffer) + 1)
        match dice.randrange(5):
            case 0:
                del buffer[at:]
            case 1:
                buffer[at : at + dice.randint(0, 40)] = b""
            case 2:
                buffer[at:at] = dice.choice(
                    [b"\xff\xfe", b"\x00", b"[" * 3000, b"{" * 50, b'"', b"\n", b"&a *a", b"9" * 400, b"NaN"]
                )
            case 3:
                buffer[at:at] = buffer[at : at + 200]
            case _:
                buffer[at : at + 1] = bytes([dice.randrange(256)])
    return bytes(buffer)


class Fuzz:
    """One folder with sound originals; `seeds` of it are spoilt one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, open_home(folder / "home")
        self.model = tiny_llama(folder / "model")
        gguf_files.write(folder / "x.gguf", self.model)
        self.gguf = (folder / "x.gguf").read_bytes()
        self.kept = {
            name: (self.model / name).read_bytes() for name in ("config.json", "tokenizer.json", "model.safetensors")
        }
        self.recipes = [path.read_text() for path in sorted((ASSETS / "recipes").glob("*.yaml"))]
        self.results = [path.read_bytes() for path in sorted(RECORDED.glob("*.json"))]
        (folder / "sums.jsonl").write_text('{"q": "1", "c": ["a", "b"], "a": 0}\n')
        self.kinds: list[Callable[[random.Random], object]] = [
            self.command,
            self.command,
            self.command,
            self.recipe,
            self.recipe,
            self.preset,
            self.task,
            self.config,
            self.config,
            self.header,
            self.tokenizer,
            self.workload,
            self.workload,
            self.result,
            self.calibration,
            self.head,
        ]

    def run(self, seed: int) -> None:
        dice = random.Random(seed)
        dice.choice(self.kinds)(dice)

    def command(self, dice: random.Random) -> None:
        requests = [dice.choice(WORDS) if word == "?" else word for word in dice.choice(COMMANDS)]
        output = whetstone(self.home.settings.home, *requests)
        assert output.returncode in {0, 1, 2} and "Traceback" not in output.stderr, requests

    def recipe(self, dice: random.Random) -> None:
        text = dice.choice(self.recipes)
        spoilt = damaged(text.encode(), dice).decode(errors="replace") if dice.random() < 0.4 else None
        (self.folder / "r.yaml").write_text(
            spoilt or yaml.safe_dump(changed(yaml.safe_load(text), dice)), errors="replace"
        )
        output = whetstone(
            self.home.settings.home, "recipe", dice.choice(["check", "estimate"]), self.folder / "r.yaml"
        )
        assert output.returncode in {0, 2} and "Traceback" not in output.stderr
        recipe_files.read_file(self.folder / "r.yaml")

    def preset(self, dice: random.Random) -> None:
        claim = {"metric": "m", "value": 1.0, "unit": "u", "statement": "s", "source": "s"}
        preset = {
            "id": "a/b",
            "model": "starter",
            "goal": "balanced",
            "recipe": yaml.safe_load(self.recipes[0]),
            "published": [claim],
        }
        text = yaml.safe_dump(changed({"presets": [preset]}, dice)).encode("utf-8", "replace")
        (self.folder / "p.yaml").write_bytes(damaged(text, dice) if dice.random() < 0.3 else text)
        home = self.home.settings.home
        for command in (["import", self.folder / "p.yaml", "--replace"], ["list"], ["export"]):
            output = whetstone(home, "presets", *command)
            assert output.returncode in {0, 2} and (output.returncode == 0 or command[0] == "import"), output.stderr
        preset_text.read_file(self.folder / "p.yaml")

    def task(self, dice: random.Random) -> None:
        text = yaml.safe_dump(changed(TASK, dice)).encode("utf-8", "replace")
        (self.folder / "t.yaml").write_bytes(damaged(text, dice) if dice.random() < 0.3 else text)
        task_files.read(self.folder / "t.yaml")

    def config(self, dice: random.Random) -> None:
        document = changed(json.loads(self.kept["config.json"]), dice)
        self._model(
            "config.json",
            json.dumps(document).encode() if dice.random() < 0.8 else damaged(self.kept["config.json"], dice),
        )
        output = whetstone(self.home.settings.home, "recipe", "estimate", "awq", "--model", self.model)
        assert output.returncode in {0, 2} and "Traceback" not in output.stderr

    def header(self, dice: random.Random) -> None:
        whole = self.kept["model.safetensors"]
        size = int.from_bytes(whole[:8], "little")
        head = json.dumps(changed(json.loads(whole[8 : 8 + size]), dice)).encode()
        self._model("model.safetensors", len(head).to_bytes(8, "little") + head + whole[8 + size :])
        read_card(self.model)

    def tokenizer(self, dice: random.Random) -> None:
        self._model("tokenizer.json", json.dumps(changed(json.loads(self.kept["tokenizer.json"]), dice)).encode())
        read_card(self.model)
        token_lengths.lengths(self.model, ["some text"])

    def _model(self, name: str, content: bytes) -> None:
        for other, remaining in self.kept.items():
            (self.model / other).write_bytes(content if other == name else remaining)

    def workload(self, dice: random.Random) -> None:
        kind = dice.choice(["jsonl", "json", "csv", "parquet"])
        if kind in {"jsonl", "json"} and dice.random() < 0.6:
            rows = [changed(json.loads(line), dice) for line in JSONL.splitlines()]
            content = "\n".join(map(json.dumps, rows)).encode() if kind == "jsonl" else json.dumps(rows).encode()
        else:
            content = damaged({"csv": CSV, "parquet": self._parquet()}.get(kind, JSONL), dice)
        dice.choice([workload_files.preview, lambda name, body: workload_files.own_lines(name, body, {})])(
            f"w.{kind}", content
        )

    def _parquet(self) -> bytes:
        import pyarrow
        import pyarrow.parquet

        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(pyarrow.table({"prompt": ["a", "b"], "max_tokens": [3, 4]}), sink)
        content: bytes = sink.getvalue().to_pybytes()
        return content

    def result(self, dice: random.Random) -> None:
        content = dice.choice(self.results)
        spoilt = (
            json.dumps(changed(json.loads(content), dice)).encode() if dice.random() < 0.7 else damaged(content, dice)
        )
        imported_results.add(self.home, [("r.json", spoilt)])
        imported_results.listing(self.home)

    def calibration(self, dice: random.Random) -> None:
        kind = dice.choice(["jsonl", "parquet", "txt"])
        content = {"jsonl": JSONL, "parquet": self._parquet()}.get(kind, b"text \xc3\xa9")
        (self.folder / f"c.{kind}").write_bytes(damaged(content, dice))
        calibration_text.texts(str(self.folder / f"c.{kind}"))

    def head(self, dice: random.Random) -> None:
        (self.folder / "y.gguf").write_bytes(damaged(self.gguf[:4096], dice) + self.gguf[4096:])
        gguf.card(gguf.read_model(self.folder / "y.gguf"), "y")


def went(fuzz: Fuzz, seeds: range) -> list[str]:
    """What went wrong: exceptions that nobody foresaw, and what took too long."""
    wrong = []
    for seed in seeds:
        began, used = time.monotonic(), _processor()
        try:
            fuzz.run(seed)
        except WhetstoneError as error:
            if "\n" in str(error) or not str(error):
                wrong.append(f"{seed}: no sentence: {str(error)[:200]!r}")
        except Exception as error:  # noqa: BLE001  this is what is looked for
            wrong.append(f"{seed}: {type(error).__name__}: {str(error)[:300]}")
        took, used = time.monotonic() - began, _processor() - used
        if took > PATIENCE_S or used > HANGS_S:
            wrong.append(f"{seed}: {took:.0f} s, {used:.0f} s of the processor")
    return wrong


def _processor() -> float:
    """Seconds of this process and of its children that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


@pytest.fixture(scope="module")
def fuzz(tmp_path_factory: pytest.TempPathFactory) -> Fuzz:
    return Fuzz(tmp_path_factory.mktemp("fuzz"))


def test_a_few(fuzz: Fuzz) -> None:
    assert went(fuzz, range(QUICK)) == []


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_all(fuzz: Fuzz) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wrong = went(fuzz, range(QUICK, ALL))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"{ALL - QUICK} inputs: {len(wrong)} went wrong, memory grew by {grown / 1000:.0f} MB")
    assert wrong == [] and grown < MEMORY_KB
