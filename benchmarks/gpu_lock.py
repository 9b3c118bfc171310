"""The environment of vLLM's CUDA build, installed whole where no GPU is: hashes, dependencies, imports, command lines.

    .venv/bin/python -m benchmarks.gpu_lock FOLDER [--note "..."]

Installs assets/locks/serve-gpu.txt into a new environment in FOLDER (one that is there is taken as it is), with its
hashes and nothing else (8 GB), as an installation on a machine with a GPU does. Then asks it for `pip check`, for
`import vllm`, and lets its `vllm serve` parse every command line of `command_lines`: each setting of a recipe, each way
to speculate. Nothing is served. Writes benchmarks/results/gpu_lock.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from backend.domain.evaluation.document import Speculation, Variant
from backend.domain.machine.hardware_lines import hardware_line
from backend.domain.recipe.recipe import Serving
from backend.domain.recipe.speculation import SPECULATE
from backend.engines import environments
from backend.hardware import probe
from backend.serving import vllm_options
from backend.settings import CHECKOUT

RESULTS = Path(__file__).parent / "results"
LOCK = environments.LOCKS / "serve-gpu.txt"
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    *({"dtype": dtype} for dtype in ("bfloat16", "float16", "float32")),
    {"kv_cache_dtype": "fp8"},
    {"max_model_len": 4096, "max_num_seqs": 64, "max_num_batched_tokens": 8192},
    {"prefix_caching": True, "chunked_prefill": True},
    {"prefix_caching": False, "chunked_prefill": False, "enforce_eager": True},
    {"tensor_parallel": 2, "pipeline_parallel": 2},
    {"tensor_parallel": 2, "data_parallel": 2, "expert_parallel": True},
    {"block_size": 32},
    *({"attention_backend": backend} for backend in ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN")),
    *({"performance_mode": mode} for mode in ("balanced", "interactivity", "throughput")),
)
"""Serving settings of a recipe for vLLM on GPUs: each field at each of its kinds of values."""
PARSING = """
import json, sys
import vllm, vllm.platforms
from vllm.platforms.cpu import CpuPlatform
vllm.platforms._current_platform = CpuPlatform()
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
for line in sys.stdin:
    words = json.loads(line)
    try:
        parser.parse_args(words)
        print(json.dumps([" ".join(words), ""]))
    except SystemExit:
        print(json.dumps([" ".join(words), "refused"]))
print(json.dumps(["vllm", vllm.__version__]))
"""
"""Run by the environment's own interpreter: a command line a line, each answered with what is wrong with it. The
platform is named, since vLLM finds none where no card is; the parser's options are those of the CUDA build."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--note", default="")
    arguments = parser.parse_args()
    python, lines = arguments.folder / "bin" / "python", list(command_lines())
    facts: list[tuple[str, str]] = []
    # 1. Install into an empty environment.
    if not python.exists():
        run([sys.executable, "-m", "venv", str(arguments.folder)])
        installer = CHECKOUT / "backend" / "engines" / "uv_installer.py"
        options = ["-q", "--no-deps", "--require-hashes", "-r", str(LOCK)]
        if subprocess.run([sys.executable, "-P", str(installer), str(python), *options], check=False).returncode:
            # pip looks for the hashes among all builds of a version, uv takes one build.
            run([str(python), "-m", "pip", "install", "--no-compile", *options])
    listed = json.loads(run([str(python), "-m", "pip", "list", "--format", "json"]))
    size = int(run(["du", "-sb", str(arguments.folder)]).split()[0])
    facts.append(("installed", f"{len(listed)} packages, {size / 1e9:.1f} GB"))
    # 2. Dependencies, import and command lines.
    checked = subprocess.run([str(python), "-m", "pip", "check"], capture_output=True, text=True, check=False)
    facts.append(("pip check", checked.stdout.strip().replace("\n", "; ")))
    sent = "".join(f"{json.dumps(line)}\n" for line in lines)
    *parsed, version = [
        json.loads(line) for line in run([str(python), "-c", PARSING], sent).splitlines() if line[0] == "["
    ]
    facts.append(("import vllm", version[1]))
    refused = [line for line, problem in parsed if problem]
    facts.append(
        (
            "command lines",
            f"{len(parsed) - len(refused)} of {len(lines)} parsed" + "".join(f"; refused: {line}" for line in refused),
        )
    )
    (RESULTS / "gpu_lock.md").write_text(text := report(facts, arguments.note))
    print(text)


def command_lines() -> Iterator[list[str]]:
    """Yield what follows `vllm serve` for each setting, then for each way to speculate."""
    for settings in SETTINGS:
        yield _arguments(Serving(**settings), None)
    for method, row in SPECULATE.items():
        fields: dict[str, Any] = {"method": method, "tokens": 3}
        if row.needs in {"model", "head"}:
            fields["draft_path"] = "/draft"
        if row.needs == "class":
            fields["proposer"] = "package.module.Proposer"
        yield _arguments(Serving(), Speculation(**fields))


def _arguments(serving: Serving, speculation: Speculation | None) -> list[str]:
    variant = Variant(name="model", source="model", kind="model", serving=serving, speculation=speculation)
    return vllm_options.server_arguments(variant, port=8000, served_name="model", kv_cache_bytes=None)


def run(command: list[str], sent: str = "") -> str:
    """Run to the end and return what it printed; its errors go to standard error."""
    return subprocess.run(command, input=sent, stdout=subprocess.PIPE, text=True, check=True).stdout


def report(facts: list[tuple[str, str]], note: str) -> str:
    """The record as Markdown."""
    lines = [
        "# vLLM's CUDA build, installed where no GPU is",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, {hardware_line(probe.probe())}, no GPU. {note}".strip(),
        f"`python -m benchmarks.gpu_lock`; assets/locks/{LOCK.name} into an empty environment. Nothing was served.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {text} |" for name, text in facts),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
