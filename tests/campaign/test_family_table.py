"""The table of families: family x technique x (optimized, vLLM loads it, its answers agree with the fake-quantized
reference).

Nothing is skipped: what vLLM does not load stands in the table with its reason, and in `REFUSED` with the same words.
"""

from __future__ import annotations

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from backend.domain.jobs.progress import NoProgress
from backend.domain.machine.instruction_sets import is_avx2_alone
from backend.engines.base import Pruning, QuantizeRequest
from backend.engines.native import quantize
from backend.evaluate.quality import quantized_reference as quality_reference
from backend.hardware import probe
from backend.layered import dequantize
from backend.serving.vllm_options import PLUGIN
from backend.settings import CHECKOUT
from tests.families import KINDS, logits, tiny
from tests.rounding import W4A8, apart, overflow
from tests.tiny import TEXT
from tests.vllm_offline import BEGIN

pytestmark = [pytest.mark.campaign, pytest.mark.vllm]

PYTHON = Path(os.environ.get("WHETSTONE_ENGINES") or CHECKOUT / ".engines") / "serve/bin/python"
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "PYTHONPATH": str(PLUGIN),
}
AT_ONCE, KINDS_EACH = 2, 4
"""vLLM's processes beside each other, and of how many kinds each loads the models: its import takes as long as a kind
does."""
SERVE = f"""{BEGIN}
tokens, models = json.load(sys.stdin)
sampling = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
for model in models:
    try:
        llm = LLM(
            model, enforce_eager=True, max_model_len=256, max_num_seqs=4,
            dtype="bfloat16", enable_prefix_caching=False,
        )
        answer = llm.generate([{{"prompt_token_ids": tokens}}], sampling)[0]
        pairs = zip(tokens[1:], answer.prompt_logprobs[1:])
        print("ANSWER " + json.dumps([row[token].logprob for token, row in pairs]))
        del llm
    except Exception as error:
        print("REFUSED " + (str(error).strip().splitlines() or [type(error).__name__])[0][:160])
    collect()
"""
TECHNIQUES: dict[str, dict[str, Any]] = {
    "awq": {"method": "awq", "bits": 4, "group_size": 32, "symmetric": False},
    "awq-autoawq-format": {
        "method": "awq",
        "bits": 4,
        "group_size": 32,
        "symmetric": False,
        "tuning": {"format": "autoawq"},
    },
    "gptq": {
        "method": "gptq",
        "bits": 4,
        "group_size": 32,
        "symmetric": True,
        "tuning": {"act_order": True, "clip": True},
    },
    "w8a8": {"method": "w8a8", "bits": 8, "symmetric": True},
    "smoothquant": {"method": "smoothquant", "bits": 8, "symmetric": True},
    "wanda": {
        "method": None,
        "bits": 16,
        "symmetric": True,
        "pruning": Pruning(method="wanda", sparsity=0.5, pattern="2:4"),
    },
}
EIGHT = {"w8a8", "smoothquant"}
OF_FEW = {"w8a8", "wanda"}
"""Techniques whose files have a form that another row of the same kind has: w8a8 that of smoothquant, wanda that of the
original. They are served of one kind of each layout."""
FEW = ("llama", "mixtral", "gpt2", "falcon-40b")
"""Plain linears, experts, transposed linears, fused projections."""
MIXTURES = ("mixtral", "qwen2-moe", "qwen3-moe")
_BLOOM = "shape '[4, 3, -1"  # its loader turns the fused projection round, and the shape of packed weights with it
_NO_PRODUCTS = "no product of 4-bit weights without AVX-512"
# vLLM finds no kernel for quantized experts on a processor
_MOE, _MOE_8 = "No WNA16 MoE backend", "No Int8 MoE backend"
FOUR = ("awq", "awq-autoawq-format", "gptq")
OVERFLOWS = "but for the overflow of 8-bit products:"
"""On processors without AVX-512 (processor_notes.EIGHT_NONE)."""
UNSERVED = FOUR if is_avx2_alone(probe.probe()["flags"]) else ()
"""Techniques whose products vLLM's build for this processor lacks: its process ends at the first request, so none is
sent."""
SERVED_BY_AMX = {"awq-autoawq-format", "w8a8", "smoothquant"} if W4A8 else set()
"""Of quantized experts: vLLM's kernels for these are AMX's."""
REFUSED: dict[tuple[str, str], str] = {
    **{(kind, technique): _BLOOM for kind in ("bloom", "bloom-post-norm") for technique in FOUR},
    **{(kind, technique): _MOE for kind in MIXTURES for technique in FOUR if technique not in SERVED_BY_AMX},
    **{(kind, technique): _MOE_8 for kind in MIXTURES for technique in EIGHT if technique not in SERVED_BY_AMX},
    **{(kind, technique): _NO_PRODUCTS for kind in KINDS for technique in UNSERVED},
}
"""What vLLM 0.32.0 on a processor does not load: by kind and technique, what the reason says."""


class Row(NamedTuple):
    kind: str
    technique: str
    optimized: str
    loads: str
    agree: str


def expected(model: Any, tokens: list[int]) -> Any:
    """Log-probability of each token given those before [length - 1], in fp32."""
    import torch

    with torch.no_grad():
        scores = model(torch.tensor([tokens]), use_cache=False).logits[0, :-1].log_softmax(-1)
    return scores.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]


def reference(out: Path) -> Any:
    """The model that the checkpoint stands for, in fp32."""
    import torch
    from transformers import AutoModelForCausalLM

    packed = dequantize.open_plain(out)
    if isinstance(packed, dequantize.FormulaSource):
        return quality_reference.build_plain_model(out, dict(packed.read(packed.plain())))
    if json.loads((out / "config.json").read_text()).get("quantization_config"):
        return quality_reference.load_quantized(out)
    return AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)


def serve(folders: list[Path]) -> list[tuple[Any, str]]:
    """Of each model vLLM's log-probabilities, or None and why not."""
    import torch

    done = subprocess.run(
        [PYTHON, "-c", SERVE],
        input=json.dumps([tokens(), [str(folder) for folder in folders]]),
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT},
        timeout=900,
        check=False,
    )
    results: list[tuple[Any, str]] = []
    for line in done.stdout.splitlines():
        word, _, rest = line.partition(" ")
        if word in {"ANSWER", "REFUSED"}:
            results.append((torch.tensor(json.loads(rest)), "") if word == "ANSWER" else (None, rest))
    last = (done.stderr.strip().splitlines() or ["no word"])[-1][:160]
    return results + [(None, f"exit code {done.returncode}: {last}")] * (len(folders) - len(results))


def tokens() -> list[int]:
    import torch

    return torch.randint(1, 256, (96,), generator=torch.Generator().manual_seed(1)).tolist()


def techniques(kind: str) -> list[str]:
    """Those that are tried on this kind."""
    return [technique for technique in TECHNIQUES if kind in FEW or technique not in OF_FEW]


def served(kind: str) -> list[str]:
    """Those of them that vLLM is asked to load."""
    return [technique for technique in techniques(kind) if technique not in UNSERVED]


def make_variants(folder: Path, kind: str) -> list[Path]:
    """Make the original, and it after each technique; return those that are served."""
    source = tiny(folder / "source", kind)
    for technique in techniques(kind):
        options = TECHNIQUES[technique]
        values = {**options, "calibration_texts": [TEXT], "samples": 8, "length": 32}
        quantize(QuantizeRequest(model_dir=source, out_dir=folder / technique, **values), NoProgress())
    return [source, *(folder / technique for technique in served(kind))]


def judged(folder: Path, kind: str, answers: list[tuple[Any, str]]) -> list[Row]:
    """A row a technique. The noise of the served 16-bit original, which bfloat16 alone makes, is what may be apart
    twice."""
    import torch

    original = logits(folder / "source", torch.tensor([tokens()]))[0, :-1].log_softmax(-1)
    original = original.gather(1, torch.tensor(tokens()[1:])[:, None])[:, 0]
    (plain, why), *rest = answers
    assert plain is not None, f"vLLM does not serve the original of {kind}: {why}"
    noise = (plain - original).abs().mean()
    answered = dict(zip(served(kind), rest, strict=True))
    return [
        row(kind, technique, folder / technique, noise, original, answered.get(technique, (None, _NO_PRODUCTS)))
        for technique in techniques(kind)
    ]


def row(kind: str, technique: str, out: Path, noise: Any, original: Any, answer: tuple[Any, str]) -> Row:
    logprobs, why = answer
    if logprobs is None:
        return Row(kind, technique, "yes", f"no: {why}", "not served")
    computed = expected(reference(out).eval(), tokens())
    distance, rounding = (logprobs - computed).abs().mean(), (computed - original).abs().mean()
    # inputs in 8 bits are rounded anew by each kernel
    allowed = apart(noise, TECHNIQUES[technique]["bits"]) + (rounding if technique in EIGHT else 0.0)
    if distance < allowed:
        return Row(kind, technique, "yes", "yes", "yes")
    numbers = f"{distance:.4f} nats apart, {allowed:.4f} allowed"
    overflows = technique in EIGHT and distance < allowed + overflow(computed)
    return Row(kind, technique, "yes", "yes", f"{OVERFLOWS} {numbers}" if overflows else f"no: {numbers}")


def test_the_table_of_families(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, kinds = [], [*KINDS]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        pairs = [
            (some, pool.submit(serve, [folder for kind in some for folder in make_variants(tmp_path / kind, kind)]))
            for some in (kinds[at : at + KINDS_EACH] for at in range(0, len(kinds), KINDS_EACH))
        ]
        for some, answered in pairs:
            answers = iter(answered.result())
            for kind in some:
                result = judged(tmp_path / kind, kind, [*islice(answers, 1 + len(served(kind)))])
                rows += result
                with capsys.disabled():
                    print("\n".join(" | ".join(each) for each in result), flush=True)
    for each in rows:
        reason = REFUSED.get((each.kind, each.technique))
        if reason is None:
            assert each.loads == "yes" and each.agree.startswith(("yes", OVERFLOWS)), each
        else:
            assert reason in each.loads, each
