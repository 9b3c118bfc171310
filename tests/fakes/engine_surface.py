"""The surface of a vLLM server that can be seen from outside: its log and its `/metrics`, of whatever it is said to do.

Every line is one that vLLM 0.32.0 wrote on this project's machine (tests/recorded/vllm-0.32), with what differs filled
in: a server that ignores what it was asked is one whose surface was made of something else.
"""

from __future__ import annotations

from dataclasses import dataclass, field

ARGUMENTS = (
    "(APIServer pid=1) INFO 11-23 10:24:22 [api_utils.py:286] non-default args: "
    "{{'host': '127.0.0.1', 'port': 59243, 'model': 'target-model'{more}}}"
)
CONFIGURED = (
    "(EngineCore pid=2) INFO 11-23 10:24:30 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: "
    "model='target-model', speculative_config={speculation}, tokenizer='target-model', skip_tokenizer_init=False, "
    "tokenizer_mode=auto, revision=None, tokenizer_revision=None, trust_remote_code=False, dtype=torch.{dtype}, "
    "max_seq_len={context}, download_dir=None, load_format={load_format}, tensor_parallel_size={parallel}, "
    "pipeline_parallel_size=1, data_parallel_size=1, disable_custom_all_reduce=True, quantization={quantization}, "
    "quantization_config=None, enforce_eager={eager}, "
    "aux_output_config=AuxOutputConfig(enable_return_routed_experts=False, "
    "max_bytes=None), kv_cache_dtype={cache}, device_config=cpu, seed=0, served_model_name=x, "
    "enable_prefix_caching={prefixes}, "
    "enable_chunked_prefill={chunked}, pooler_config=None, compilation_config={{'mode': <CompilationMode.{mode}>, "
    "'debug_dump_path': None, 'backend': 'inductor'}}"
)
KERNEL = "(EngineCore pid=2) INFO 11-23 10:24:30 [__init__.py:846] {kernel}"
CHECKPOINT = (
    "(EngineCore pid=2) INFO 11-23 10:24:31 [weight_utils.py:1108] Filesystem type for checkpoints: EXT4. "
    "Checkpoint size: {gib:.2f} GiB. Available RAM: 18.97 GiB."
)
CACHE = (
    "(EngineCore pid=2) INFO 11-23 10:24:42 [kv_cache_utils.py:2327] CPU KV cache size: {tokens:,} tokens, "
    "Maximum concurrency for 8,192 tokens per request: 1.14x"
)
RUNNING = (
    "(APIServer pid=1) INFO 11-23 10:25:54 [loggers.py:335] Engine 000: Avg prompt throughput: 339.6 tokens/s, Avg "
    "generation "
    "throughput: 195.2 tokens/s, Running: {running} reqs, Waiting: 0 reqs, CPU KV cache usage: 6.9%, Prefix cache hit "
    "rate: 0.0%"
)
EAGER = (
    "(APIServer pid=1) WARNING 11-23 16:49:01 [vllm.py:1703] Enforce eager set, disabling torch.compile, CUDAGraphs, "
    "and JIT "
    "kernel warmup. This is equivalent to setting -cc.mode=none -cc.cudagraph_mode=none and "
    "--kernel_config.enable_jit_warmup=False"
)
HARMLESS = (
    "Triton is installed, but doesn't include CPU backend. Disabling Triton.",
    "(APIServer pid=1) WARNING 11-23 10:24:22 [vllm.py:1605] Async scheduling not supported with ngram-based "
    "speculative "
    "decoding and will be disabled.",
    "(EngineCore pid=2) WARNING 11-23 10:24:43 [vllm.py:1727] Inductor compilation was disabled by user settings, "
    "optimizations "
    "settings that are only active during inductor compilation will be ignored.",
    "(EngineCore pid=2) INFO 11-23 10:24:31 [weight_utils.py:1131] Auto-prefetch is disabled because the filesystem "
    "(EXT4) is "
    "not a recognized network FS (NFS/Lustre).",
    "(APIServer pid=1) INFO 11-23 10:24:43 [factories.py:89] Scale-out endpoints are disabled. Restart vllm serve with "
    "--enable-scale-out to enable them.",
)
"""That every honest start writes too."""


@dataclass(frozen=True)
class Surface:
    """What a server does, truly. `elements`: of a token's keys and values over all layers; `element_bytes` of each."""

    dtype: str = "bfloat16"
    context: int = 8192
    load_format: str = "auto"
    parallel: int = 1
    quantization: str | None = None
    kernels: tuple[str, ...] = ()
    eager: bool = False
    mode: str = "DYNAMO_TRACE_ONCE: 2"
    cache: str = "auto"
    elements: int = 11_520
    element_bytes: float = 2.0
    prefixes: bool = True
    chunked: bool = True
    speculation: tuple[str, str | None, int] | None = None
    gib: float = 0.25
    running: int = 1
    arguments: dict[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """Lines that the server writes besides."""

    def log(self) -> list[str]:
        memory = 1 << 28
        more = "".join(
            f", {name!r}: {value!r}" for name, value in {**self.arguments, "kv_cache_memory_bytes": memory}.items()
        )
        lines = [ARGUMENTS.format(more=more), *HARMLESS, *([EAGER] if self.eager else []), *self.notes]
        lines += [CONFIGURED.format(**self._configuration())]
        lines += [KERNEL.format(kernel=kernel) for kernel in self.kernels]
        lines += [
            CHECKPOINT.format(gib=self.gib),
            CACHE.format(tokens=int(memory / self.elements / self.element_bytes)),
        ]
        return [*lines, RUNNING.format(running=self.running)]

    def _configuration(self) -> dict[str, object]:
        method, model, tokens = self.speculation or ("", None, 0)
        speculation = f"SpeculativeConfig(method={method!r}, model={model!r}, num_spec_tokens={tokens})"
        return {
            "speculation": speculation if self.speculation else None,
            "dtype": self.dtype,
            "context": self.context,
            "load_format": self.load_format,
            "parallel": self.parallel,
            "quantization": self.quantization,
            "eager": self.eager,
            "cache": self.cache,
            "prefixes": self.prefixes,
            "chunked": self.chunked,
            "mode": self.mode,
        }

    def metrics(self, generated: int = 0, drafts: int = 0, accepted: tuple[int, ...] = ()) -> str:
        """After so many tokens and drafts; `accepted` by position. A server without speculation has no such
        counters."""
        label = 'engine="0",model_name="x"'
        lines = [
            f'vllm:cache_config_info{{block_size="128",cache_dtype="{self.cache}",'
            f'enable_prefix_caching="{self.prefixes}",{label}}} 1.0',
            f"vllm:generation_tokens_total{{{label}}} {float(generated)}",
        ]
        if self.speculation:
            names = {
                "num_drafts": drafts,
                "num_draft_tokens": drafts * self.speculation[2],
                "num_accepted_tokens": sum(accepted),
            }
            lines += [f"vllm:spec_decode_{name}_total{{{label}}} {float(value)}" for name, value in names.items()]
            lines += [
                f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{label},position="{position}"}} {float(count)}'
                for position, count in enumerate(accepted)
            ]
        return "\n".join(lines) + "\n"
