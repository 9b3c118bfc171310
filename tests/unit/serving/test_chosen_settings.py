"""Serving settings that somebody chose are held against what each engine says that it does."""

from __future__ import annotations

import pytest

from backend.domain.evaluation.document import Variant
from backend.domain.evaluation.evidence.engine_log import parse_engine_log
from backend.domain.evaluation.evidence.findings import findings
from backend.domain.evaluation.evidence.llama_cpp_findings import add_logged_facts
from backend.domain.evaluation.evidence.openvino_findings import parse_facts
from backend.domain.evaluation.evidence.served_variant import LlamaCppFacts, StartEvidence
from backend.domain.recipe.recipe import Serving

LLAMA_CPP_LOG = (
    "0.00.529.748 I llama_context: n_batch               = 256",
    "0.00.529.755 I llama_context: n_ubatch              = 128",
    "0.00.529.769 I llama_context: flash_attn            = disabled",
)
"""Lines of llama.cpp 0c1e57098, started with these settings on 2026-11-26."""
VLLM_LOG = (
    "INFO 11-26 19:21:40 [entrypoints/utils.py:299] non-default args: {'model': 'm', 'max_num_batched_tokens': 256, "
    "'performance_mode': 'interactivity', 'block_size': 32, 'enable_expert_parallel': True}",
    "INFO 11-26 19:21:44 [v1/engine/core.py:112] Initializing a V1 LLM engine (v0.32.0) with config: model='m', "
    "dtype=torch.bfloat16, max_seq_len=64, tensor_parallel_size=1, pipeline_parallel_size=2, data_parallel_size=1, "
    "decode_context_parallel_size=1",
    "INFO 11-26 19:21:44 [platforms/cuda.py:446] Using AttentionBackendEnum.FLASH_ATTN backend.",
)


def proven(evidence: StartEvidence, **settings: object) -> dict[str, bool | None]:
    """Return what was proven of the aspects that these settings have."""
    variant = Variant(name="a", source="a", kind="model", serving=Serving.model_validate(settings), bytes_on_disk=10)
    aspects = {"batch_tokens", "attention", "cache_blocks", "performance_mode"}
    aspects |= {"pipeline_parallel", "data_parallel", "expert_parallel"}
    return {each.what: each.proven for each in findings(variant, {}, [evidence], []) if each.what in aspects}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"max_num_batched_tokens": 256, "micro_batch_tokens": 128}, {"batch_tokens": True}),
        ({"max_num_batched_tokens": 512}, {"batch_tokens": False}),
        ({"flash_attention": False}, {"attention": True}),
        ({"flash_attention": True}, {"attention": False}),
        ({}, {}),
    ],
)
def test_llama_cpp_says_its_batches_and_attention(settings: dict[str, object], expected: dict[str, bool]) -> None:
    facts = add_logged_facts(LlamaCppFacts(), LLAMA_CPP_LOG)
    assert proven(StartEvidence(parse_engine_log([]), llama_cpp=facts), engine="llama.cpp", **settings) == expected
    silent = StartEvidence(parse_engine_log([]), llama_cpp=LlamaCppFacts())
    assert proven(silent, engine="llama.cpp", **settings) == dict.fromkeys(expected)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"max_num_batched_tokens": 64, "cache_eviction_tokens": 128}, {"batch_tokens": True, "cache_blocks": True}),
        ({"sparse_attention": "trishape"}, {"attention": False}),
        ({"sparse_attention": "xattention"}, {"attention": True}),
    ],
)
def test_openvino_says_its_scheduler(settings: dict[str, object], expected: dict[str, bool]) -> None:
    meta = {"step_tokens": 64, "eviction_tokens": 128, "sparse_attention": "xattention"}
    facts = parse_facts({"data": [{"meta": meta}]})
    assert proven(StartEvidence(parse_engine_log([]), openvino=facts), engine="openvino", **settings) == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"max_num_batched_tokens": 256, "performance_mode": "interactivity"},
            {"batch_tokens": True, "performance_mode": True},
        ),
        ({"block_size": 16}, {"cache_blocks": True}),
        ({"block_size": 32}, {"cache_blocks": False}),
        ({"attention_backend": "FLASH_ATTN"}, {"attention": True}),
        ({"attention_backend": "FLASHINFER"}, {"attention": False}),
        ({"pipeline_parallel": 2, "data_parallel": 2}, {"pipeline_parallel": True, "data_parallel": False}),
        ({"expert_parallel": True}, {"expert_parallel": True}),
        ({"expert_parallel": False}, {}),
    ],
)
def test_vllm_says_its_arguments_cache_and_attention(settings: dict[str, object], expected: dict[str, bool]) -> None:
    evidence = StartEvidence(parse_engine_log(VLLM_LOG), cache={"block_size": "16"})
    assert proven(evidence, **settings) == expected
