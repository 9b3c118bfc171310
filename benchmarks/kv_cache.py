"""What a smaller key-value cache costs in quality and gives in memory and speed, at long context, as served.

    python -m benchmarks.kv_cache MODEL_FOLDER GGUF_FILE [--contexts 2048,8000] [--texts 2,1] [--engine openvino]
    [--note "..."]

MODEL_FOLDER is the import that GGUF_FILE was made of. Each engine serves the file with each type of cache that it has
on a processor. The next-token probabilities at every fourth or eighth position of a context's second half are compared
with those of llama.cpp with a 16-bit cache, which is the first row: so a row of OpenVINO holds what its reader and
arithmetic change too (its reader rounds Q4_1: take a file in Q8_0), and its types are to be compared with each other.
The time of an output token is that of a request with 33 tokens less that of one with 1, over a context that the cache
holds already. Bytes a token are the planner's arithmetic. Writes benchmarks/results/kv_cache.md and .json after every
row; rows of the same file that are not measured again stay.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from backend import settings
from backend.catalog.bundled import models
from backend.catalog.text import held_out_text
from backend.cli.output import table
from backend.domain.evaluation.document import Variant
from backend.domain.limits.served_divergence import TokenLogprobs, compare_windows
from backend.domain.machine.hardware_lines import hardware_line
from backend.domain.needs.serving_memory import kv_bytes
from backend.domain.recipe.recipe import Serving
from backend.domain.recipe.serving_engines import SERVED
from backend.evaluate.quality.scoring import window_tokens
from backend.hardware import engine_status, probe
from backend.serving.model_server import ModelServer
from backend.serving.servers import make_server

RESULTS = Path(__file__).parent / "results"
ENGINES = ("llama.cpp", "openvino")
TOP = 20
"""Tokens whose probabilities are compared at a position."""
PART = 256
"""Tokens of a part of the context whose mean is one value of the interval."""
ANSWER, REPEATS = 33, 5
"""Tokens of the longer answer, and how often an answer is timed."""
TEXT = "chat and prose"


Probed = list[list[TokenLogprobs]]
"""The most probable next tokens by text and position."""


class Row(NamedTuple):
    """One engine with one type of cache at one context."""

    engine: str
    cache: str
    context: int
    texts: int
    bytes_per_token: int
    tpot_ms: float
    kl: float | None
    kl_ci95: tuple[float, float] | None
    same_top: float | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--contexts", default="2048,8000")
    parser.add_argument("--texts", default="2,1", help="of each context")
    parser.add_argument("--engine", choices=ENGINES, help="this one alone, after the first row")
    parser.add_argument("--note", help="that of the rows before is kept without one")
    arguments = parser.parse_args()
    documents = held_out_text.read(TEXT, arguments.model).documents
    path = RESULTS / "kv_cache.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    rows = {_place(row): row for row in before.get("rows", []) if before["file"] == arguments.file.name}

    def save(row: dict[str, Any]) -> None:
        rows[_place(row)] = row
        document = {
            "model": arguments.model.name,
            "file": arguments.file.name,
            "at": datetime.now(UTC).isoformat(),
            "hardware": hardware_line(probe.probe()),
            "note": before.get("note", "") if arguments.note is None else arguments.note,
            "rows": list(rows.values()),
        }
        path.write_text(json.dumps(document, indent=1) + "\n")
        path.with_suffix(".md").write_text(report(document))

    for context, count in zip(arguments.contexts.split(","), arguments.texts.split(","), strict=True):
        texts = window_tokens(arguments.model, documents, int(context), int(count)).tolist()
        reference: Probed | None = None
        for engine in ENGINES:
            caches = next(row.cache for row in SERVED if row.engine == engine and row.hardware == "cpu")
            for cache in caches:
                if reference and arguments.engine not in (None, engine):
                    continue
                row, probed = measure(arguments.model, arguments.file, engine, cache, texts, reference)
                reference = reference or probed
                save(row._asdict())
                print(row, flush=True)


def _place(row: dict[str, Any]) -> tuple[str, str, int]:
    return row["engine"], row["cache"], row["context"]


def measure(
    model: Path,
    file: Path,
    engine: Any,
    cache: Any,
    texts: list[list[int]],
    reference: Probed | None,
) -> tuple[Row, Probed]:
    """Serve the file so, ask at the end of each text, and time answers; return the row and what was probed."""
    configured, context = settings.load(), len(texts[0])
    serving = Serving(
        engine=engine, kv_cache_dtype=cache, max_model_len=context + ANSWER + 1, max_num_seqs=1, prefix_caching=True
    )
    variant = Variant(
        name=f"{engine}-{cache}",
        source="model",
        kind="model",
        model_path=str(model),
        gguf=str(file),
        bytes_on_disk=file.stat().st_size,
        serving=serving,
    )
    program = engine_status.server_program(configured, variant)
    with tempfile.TemporaryDirectory(prefix="whetstone-kv-") as folder:
        log = Path(folder) / "server.log"
        with make_server(variant, program=program, log=log, cache_root=configured.cache / "vllm") as server:
            probed = [part for text in texts for part in second_half(server.prompt_logprobs(text, TOP))]
            tpot = 1000 * median(token_seconds(server, texts[0]) for _ in range(REPEATS))
    divergence = compare_windows(reference, probed) if reference is not None else None
    return Row(
        engine,
        cache,
        context,
        len(texts),
        kv_bytes(models.folder_card(str(model)), serving),
        tpot,
        divergence.kl if divergence else None,
        divergence.kl_ci95 if divergence else None,
        divergence.same_top if divergence else None,
    ), probed


def second_half(positions: list[TokenLogprobs]) -> Probed:
    """Return the second half in parts, which count as windows of their own."""
    return [positions[start : start + PART] for start in range(len(positions) // 2, len(positions), PART)]


def token_seconds(server: ModelServer, text: list[int]) -> float:
    """Return the seconds of an output token after the text."""
    seconds = []
    for tokens in (1, ANSWER):
        began = time.monotonic()
        body = {"prompt": text, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        server.answer("/v1/completions", body)
        seconds.append(time.monotonic() - began)
    return (seconds[1] - seconds[0]) / (ANSWER - 1)


def report(document: dict[str, Any]) -> str:
    """The rows as Markdown."""
    cells = []
    for row in document["rows"]:
        interval = "" if row["kl_ci95"] is None else " ({:.4f} to {:.4f})".format(*row["kl_ci95"])
        kl = "reference" if row["kl"] is None else f"{row['kl']:.4f}{interval}"
        same = "" if row["same_top"] is None else f"{row['same_top']:.1%}"
        cells.append(
            [row["engine"], row["cache"], f"{row['context']:,}", row["texts"], f"{row['bytes_per_token']:,}", kl, same]
            + [f"{row['tpot_ms']:.1f}"]
        )
    header = ["engine", "cache", "context", "texts", "bytes a token", "KL at least", "same top token", "TPOT ms"]
    lines = [
        f"# Key-value cache: {document['file']}",
        "",
        f"{document['at'][:10]}, {document['hardware']}. {document['note']}".strip(),
        f"`python -m benchmarks.kv_cache`; every eighth position of the second half of the texts, of {TEXT}, held out.",
        "",
    ]
    return "\n".join([*lines, "```", table(header, cells), "```", ""])


if __name__ == "__main__":
    main()
