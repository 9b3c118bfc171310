"""What is needed once before vLLM starts, done by a child: the process that owns the server stays small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from backend.layered import tokenizers
from backend.settings import CHECKOUT
from tests.tiny import tiny_llama

PROGRAM = """import sys
from pathlib import Path

from backend.domain.evaluation.document import Variant
from backend.serving.servers import make_server

folder, work = map(Path, sys.argv[1:])
variant = Variant(name="tiny", source="tiny", kind="model", model_path=str(folder))
server = make_server(variant, program=Path(sys.executable), log=work / "log", cache_root=work)
server.prepare_apart()
server._prepare()
print(sorted({"torch", "transformers"} & set(sys.modules)))
"""


def test_a_tokenizer_is_prepared_by_a_child_and_then_found(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "tiny")
    command = [sys.executable, "-c", PROGRAM, str(folder), str(tmp_path)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n", done.stderr
    assert tokenizers.is_prepared(folder, tmp_path / "tokenizers")
