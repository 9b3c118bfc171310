"""Excerpts of logs that vLLM 0.32 wrote when it did not start, and the one sentence each becomes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.serving import failures

NOISE = """(APIServer pid=13214) WARNING 11-21 02:15:25 [system_utils.py:255] Found ulimit of 20000 and failed to \
automatically increase with error current limit exceeds maximum limit. This can cause errors like \
`OSError: [Errno 98] Address already in use`.
"""
FOLLOW_UP = """(EngineCore pid=16003) ERROR 11-21 02:24:27 [core.py:1510] EngineCore failed to start.
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
LOG_LINES = {
    "llama-server: error: unrecognized arguments: --log-verbosity 4": "made by an earlier version of Whetstone",
    "OpenVINO sees no device GPU here: it sees CPU": "OpenVINO sees no device GPU here: leave `serving.device` out",
    "RuntimeError: Check 'inserted.second' failed at /x/src/cpp/src/gguf_utils/gguf.cpp:260:": "damaged or cut short",
    "  Value error, User-specified max_model_len (5000) is greater than the derived max_model_len "
    "(max_position_embeddings=2048.0"
    " or model_max_length=None in model's config.json).": "max_model_len 5000 is longer than the model's context",
    "(EngineCore pid=1) ERROR 11-21 02:14:30 [core.py:1510] ValueError: To serve at least one request with the "
    "model's max seq "
    "len (2048), 0.00 GiB KV cache is needed, which is larger than the available KV cache memory (0.0 "
    "GiB).": "the KV cache is too small",
    "ValueError: Available memory on node 0 (20.10/23.54 GiB) on kv cache allocation is less than requested memory "
    "for kv "
    "(500.0 GiB). Decrease --kv-cache-memory-bytes": "there was not enough memory",
    "RuntimeError: [enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you "
    "tried to "
    "allocate 10 bytes.": "there was not enough memory",
    "torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found in "
    "torch._inductor.config.cpp.cxx: "
    "(None, 'g++')": "none was found: install g++",
    "/tmp/x.main.cpp:2:10: fatal error: Python.h: No such file or directory": "install python3-dev",
    "OSError: [Errno 98] Address already in use": "its port was taken",
    "ModuleNotFoundError: No module named 'compressed_tensors'": "the serve environment lacks compressed_tensors",
    "  Value error, Unknown quantization method: bogus. Must be one of ['awq', 'fp8'].": "format bogus is not one",
    "  Value error, The checkpoint you are trying to load has model type `foo` but Transformers does not recognize "
    "this "
    "architecture.": "does not support the architecture foo",
    "  Value error, Total number of attention heads (8) must be divisible by tensor parallel size "
    "(3).": "tensor_parallel 3",
    "  Value error, Target and draft model should have the same vocabulary size. Target model vocab_size=4096. Draft "
    "model "
    "vocab_size=2048.": "the draft model has another vocabulary",
    "ImportError: Cannot import module 'mine' for custom proposer 'mine.P': No module named "
    "'numba'": "mine.P is no proposer",
    "AttributeError: Module 'mine' has no attribute 'P' (speculative_config.model='mine.P')": "mine.P is no proposer",
    "AttributeError: Custom proposer class 'mine.P' must have a 'propose' method.": "mine.P is no proposer",
    "RuntimeError: Cannot find any model weights with `target-model`": "has no weights",
    "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully "
    "covered": "damaged",
    "OSError: [Errno 28] No space left on device": "the disk is full",
    "(APIServer pid=1) ERROR 11-21 05:36:20 [async_llm.py:1] vllm.v1.engine.exceptions.EngineDeadError: EngineCore "
    "encountered "
    "an issue. See stack trace (above) for the root cause.": "its engine process has ended",
}


@pytest.mark.parametrize("line", LOG_LINES)
def test_a_known_failure_is_one_sentence_that_names_the_log(tmp_path: Path, line: str) -> None:
    log = tmp_path / "server.log"
    log.write_text(NOISE + line + "\n" + FOLLOW_UP)
    sentence = failures.sentence(log, 1)
    assert LOG_LINES[line] in sentence
    assert sentence.startswith("The model server did not start: ") and sentence.endswith(f"; see {log}.")
    assert "\n" not in sentence


def test_an_unknown_failure_is_its_last_cause_and_not_the_errors_that_follow_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"{NOISE}(Worker pid=7) ERROR 11-21 02:24:27 [core.py:9] KeyError: 'layers.9.weight'\n{FOLLOW_UP}")
    assert failures.sentence(log, 1) == f"The model server did not start: KeyError: 'layers.9.weight'; see {log}."


def test_a_killed_server_most_likely_had_no_memory(tmp_path: Path) -> None:
    assert "killed, most likely because memory ran out" in failures.sentence(tmp_path / "no-log", 137)


def test_a_server_that_never_answered_did_not_answer_in_time(tmp_path: Path) -> None:
    assert "it did not answer in time" in failures.sentence(tmp_path / "no-log", None)


def test_a_port_taken_by_an_earlier_attempt_is_not_counted_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("OSError: [Errno 98] Address already in use\n")
    assert failures.port_was_taken(log, 0)
    assert not failures.port_was_taken(log, log.stat().st_size)


@given(st.text())
def test_any_log_makes_one_line(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    log = tmp_path_factory.getbasetemp() / "any.log"
    log.write_bytes(text.encode(errors="surrogatepass"))
    assert "\n" not in failures.sentence(log, 1)
