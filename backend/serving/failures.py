"""Explains why a model server did not start, in one sentence, from its log and its exit code.

A table of patterns, each seen in a real log of vLLM, torch, llama.cpp or OpenVINO; the first that matches wins.
Knows nothing of processes.
"""

from __future__ import annotations

import re
from pathlib import Path

TAIL_BYTES = 400_000
SIGKILL_CODES = {137, -9}
SIGILL_CODES = {132, -4}

PORT_TAKEN = r"Address already in use|\[Errno 98\]|couldn't bind HTTP server socket"

PATTERNS: tuple[tuple[str, str], ...] = (
    (
        r"larger than the maximum number of tokens that can be stored in KV cache|"
        r"KV cache is needed, which is larger than the available KV cache memory|No available memory for the cache "
        r"blocks",
        "the KV cache is too small for one sequence of max_model_len: give it more memory, or lower "
        "serving.max_model_len",
    ),
    (
        r"is less than requested memory for kv|is less than desired (?:CPU|GPU) memory utilization|"
        r"CUDA out of memory|OutOfMemoryError|Cannot allocate memory|can't allocate memory|MemoryError|std::bad_alloc",
        "there was not enough memory: stop other servers, or lower serving.max_model_len or max_num_seqs",
    ),
    (
        r"User-specified max_model_len \((\d+)\) is greater than the derived max_model_len",
        "max_model_len {1} is longer than the model's context: lower serving.max_model_len",
    ),
    (
        r"Unknown quantization method: *'?([\w-]+)'?|(?:quantization method|quant_method) '?([\w-]+)'? is not "
        r"supported",
        "the weights' quantization format {1} is not one that vLLM supports: quantize with w8a8 or awq",
    ),
    (
        r"No compressed-tensors compatible scheme was found|(?:Q|q)uantization scheme is not supported|"
        r"Failed to find a kernel that can implement the \w+ linear layer",
        "the weights are quantized in a way that vLLM has no kernel for on this hardware: quantize with w8a8 or awq",
    ),
    (
        r"(?:InvalidCxxCompiler|No working C\+\+ compiler found|(?:g\+\+|clang\+\+|gcc).{0,40}(?:not found|No such "
        r"file))",
        "compilation needs a C++ compiler and none was found: install g++, or set serving.enforce_eager",
    ),
    (
        r"Python\.h: No such file",
        "compilation needs the Python headers: install python3-dev, or set serving.enforce_eager",
    ),
    (
        PORT_TAKEN,
        "its port was taken by another process: start it again, or give another port",
    ),
    (
        r"(?:draft|speculative)[^\n]{0,80}vocab|vocab[^\n]{0,80}(?:draft|speculative)",
        "the draft model has another vocabulary than the target: use a draft made for this model, or "
        "`heterogeneous_vocab`",
    ),
    (
        r"Cannot import module '[\w.]+' for custom proposer '([\w.]+)'|Module '[\w.]+' has no attribute '\w+' "
        r"\(speculative_config\.model='([\w.]+)'\)|[Cc]ustom proposer class '([\w.]+)'",
        "the class {1} is no proposer that vLLM takes: it must be importable in the serve environment, be made of "
        "vLLM's "
        "configuration and have `propose` and `load_model`",
    ),
    (
        r"ModuleNotFoundError: No module named '?([\w.]+)'?",
        "the serve environment lacks {1}: run `whetstone engines install serve` again",
    ),
    (
        r"Model architectures? \[?'?(\w+)'?\]? (?:are|is) not supported|has model type `(\w+)` but Transformers does "
        r"not",
        "vLLM does not support the architecture {1}: choose a model of a family it serves",
    ),
    (
        r"Cannot find any model weights",
        "the model's folder has no weights: import or optimize the model again",
    ),
    (
        r"attention heads \(\d+\) must be divisible by tensor parallel size \((\d+)\)",
        "tensor_parallel {1} does not divide the model's attention heads: choose one that does",
    ),
    (
        r"parse_safetensors_file_metadata|HeaderTooLarge|InvalidHeader|SafetensorError|MetadataIncompleteBuffer|"
        r"IncompleteMetadata",
        "the weights cannot be read: the safetensors file is damaged, so import or optimize the model again",
    ),
    (
        r"VLLM_NEURON_DISABLE_WARMUP_COMPILE: local compile cache miss",
        "what was compiled for Neuron is not what this server asks for, and it would compile again: compile it with "
        "the versions "
        "and settings that are installed here",
    ),
    (
        r"nrt_init|NRT_INVALID|No [Nn]euron devices? found|NRT_RESOURCE",
        "no NeuronCore is free here: stop what holds them (`neuron-ls` names them), or serve on an instance that has "
        "more",
    ),
    (
        r"NRT_UNSUPPORTED_NEFF_TOPOLOGY|Unsupported tensor parallel degree",
        "its tensor parallel degree is not one that this Neuron device has: compile for another "
        "`serving.tensor_parallel`",
    ),
    (
        r"unknown model architecture: '([^']+)'",
        "llama.cpp does not know the architecture {1}: serve the imported model with vLLM",
    ),
    (
        r"gguf_init_from_\w+: failed|invalid magic|tensor '[^']+' data is not within the file bounds",
        "the GGUF file is damaged or cut short: import it again",
    ),
    (
        r"llama-server: error: unrecognized arguments",
        "its environment was made by an earlier version of Whetstone: renew it with `whetstone engines install "
        "llama-cpp`",
    ),
    (
        r"OpenVINO sees no device ([\w.]+) here",
        "OpenVINO sees no device {1} here: leave `serving.device` out, or install the driver of the device",
    ),
    (
        r"Unsupported model architecture '([^']+)'",
        "OpenVINO GenAI does not know the architecture {1}: serve the file with llama.cpp",
    ),
    (
        r"gguf_utils/\w+\.cpp|unordered_map::at",
        "the GGUF file is damaged or cut short, or has what OpenVINO does not read: import it again, or serve it with "
        "llama.cpp",
    ),
    (
        r"unable to allocate CPU buffer|failed to allocate (?:buffer|compute)|failed to create context",
        "there was not enough memory for weights and cache: stop other servers, or lower serving.max_model_len or "
        "max_num_seqs",
    ),
    (r"No space left on device", "the disk is full: free some space and start it again"),
    (r"EngineDeadError", "its engine process has ended, which its log may explain: start it again"),
)

_CHATTER = re.compile(r"^.*\b(?:INFO|WARNING|DEBUG) \d\d-\d\d \d\d:.*$", re.MULTILINE)
"""Lines of vLLM's log that are not errors, though they may speak of some."""
_FOLLOW_UP = ("Engine core initialization failed", "WorkerProc", "validation error for")
"""Errors that only say that there was another."""
_ERROR_LINE = re.compile(r"(?:\w*Error|\w*Exception|Failure|FATAL|fatal error)\b[^\n]*")
_PREFIX = re.compile(r"^\([^)]*\)\s*|^(?:ERROR|CRITICAL)\s+[\d-]+\s+[\d:]+\s+\[[^\]]*\]\s*")


def sentence(log: Path, code: int | None) -> str:
    """Say what happened, what to do next and where the log is; `code` None means that the server never answered."""
    return f"The model server did not start: {_reason(tail(log), code)}; see {log}."


def died(log: Path, code: int | None) -> str:
    """Return the same sentence for a server that had answered before."""
    return f"The model server does not answer any more: {_reason(tail(log), code)}; see {log}."


def port_was_taken(log: Path, since: int) -> bool:
    """Tell whether the attempt whose log begins at byte `since` ended because of its port."""
    with log.open("rb") as stream:
        stream.seek(since)
        return re.search(PORT_TAKEN.encode(), stream.read()) is not None


def tail(log: Path) -> str:
    """Return the last part of the log as text; empty if there is no log."""
    try:
        with log.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - TAIL_BYTES))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def _reason(text: str, code: int | None) -> str:
    text = _CHATTER.sub("", text)
    for pattern, meaning in PATTERNS:
        match = re.search(pattern, text)
        if match:
            named = next((group for group in match.groups() if group), "")
            return meaning.replace("{1}", named)
    if code in SIGILL_CODES:
        return "this processor lacks an instruction that it was built for: install the engine again on this machine"
    if code in SIGKILL_CODES:
        return "it was killed, most likely because memory ran out: stop other servers or choose a smaller model"
    return _last_error(text) or ("it did not answer in time" if code is None else f"it ended with code {code}")


def _last_error(text: str) -> str | None:
    """Return the last error that is not one of vLLM's follow-up errors, else the last of all, without prefixes."""
    errors = [match.group(0).strip() for line in text.splitlines() if (match := _ERROR_LINE.search(_bare(line)))]
    causes = [error for error in errors if ":" in error and not any(words in error for words in _FOLLOW_UP)]
    chosen = (causes or errors)[-1:]
    return chosen[0].rstrip(".")[:300] if chosen else None


def _bare(line: str) -> str:
    while (shorter := _PREFIX.sub("", line)) != line:
        line = shorter
    return line
