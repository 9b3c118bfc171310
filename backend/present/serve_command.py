"""Commands to use a variant outside the studio: the engine's command for a shell, and clients in curl, Python and
JavaScript."""

from __future__ import annotations

import json
import shlex
from typing import Any

from backend.domain.evaluation import llama_cpp_speculation, vllm_flags
from backend.domain.evaluation.document import Variant
from backend.domain.recipe.serving import chosen_flags

ADDRESS = "http://127.0.0.1:8000/v1"
"""Default address of `vllm serve`."""
PROMPT = "Explain in two sentences what a key-value cache is."
CODE_PROMPT = "def read_lines(path):"
TOKENS = 128


def command(variant: Variant) -> str:
    """Return one line for a shell that has vLLM, or llama.cpp for a GGUF file; of OpenVINO for one in the checkout of
    Whetstone, whose server it is. The variant must have a folder."""
    if variant.serving.engine == "openvino":
        return _openvino_command(variant)
    if variant.gguf is not None:
        return _llama_cpp_command(variant)
    draft = variant.speculation.draft_path if variant.speculation else None
    flags = [
        *vllm_flags.serving_flags(variant.serving),
        *vllm_flags.speculation_flags(variant.speculation, draft or ""),
    ]
    proposers = variant.speculation.proposers if variant.speculation else None
    code = f"PYTHONPATH={shlex.quote(proposers)} " if proposers else ""
    return code + shlex.join(["vllm", "serve", str(variant.model_path), f"--served-model-name={variant.name}", *flags])


def _llama_cpp_command(variant: Variant) -> str:
    """Return llama-server's command with the settings that are not its own choice."""
    serving = variant.serving
    arguments = ["llama-server", "--model", str(variant.gguf), "--alias", variant.name, "--port", "8000"]
    if serving.max_model_len is not None:
        arguments += ["--ctx-size", str(serving.max_model_len * (serving.max_num_seqs or 1))]
    numbers = (
        ("parallel", serving.max_num_seqs),
        ("threads", serving.threads),
        ("threads-batch", serving.batch_threads),
    )
    for name, value in numbers:
        arguments += [f"--{name}", str(value)] if value is not None else []
    arguments += chosen_flags.llama_cpp_flags(serving)
    draft = variant.speculation.draft_gguf if variant.speculation else None
    arguments += llama_cpp_speculation.flags(variant.speculation, draft or "")
    return shlex.join([*arguments, *(["--no-cache-prompt"] if serving.prefix_caching is False else [])])


def _openvino_command(variant: Variant) -> str:
    """Return the command of Whetstone's server over OpenVINO GenAI with the settings that are not its own choice."""
    serving = variant.serving
    arguments = [".engines/openvino/bin/python", "-m", "backend.serving.openvino_program"]
    arguments += ["--model", str(variant.gguf), "--tokenizer", str(variant.model_path), f"--alias={variant.name}"]
    settings = (
        ("context", serving.max_model_len),
        ("max-num-seqs", serving.max_num_seqs),
        ("threads", serving.threads),
        ("device", serving.device),
        ("kv-cache-type", None if serving.kv_cache_dtype == "auto" else serving.kv_cache_dtype),
    )
    for name, value in settings:
        arguments += [f"--{name}", str(value)] if value is not None else []
    return "WHETSTONE_SERVER_KEY=none " + shlex.join([*arguments, *chosen_flags.openvino_flags(serving)])


def curl(served_name: str, *, chat: bool, url: str = ADDRESS, key_file: str | None = None) -> str:
    """Return a curl command that sends one prompt to `url`; `chat` applies the model's own template.

    `key_file` holds the server's API key, if it needs one.
    """
    body = shlex.quote(json.dumps(_body(served_name, chat=chat), ensure_ascii=False))
    place = "chat/completions" if chat else "completions"
    key = f'  -H "Authorization: Bearer $(cat {shlex.quote(key_file)})" \\\n' if key_file else ""
    return f"curl {shlex.quote(f'{url}/{place}')} \\\n{key}  -H 'Content-Type: application/json' \\\n  -d {body}"


def python(served_name: str, *, chat: bool, url: str = ADDRESS, key_file: str | None = None) -> str:
    """Return the same request with OpenAI's client (`pip install openai`)."""
    body = ",\n    ".join(f"{name}={value!r}" for name, value in _body(served_name, chat=chat).items())
    make, text = ("chat.completions", "message.content") if chat else ("completions", "text")
    key = f"open({key_file!r}).read()" if key_file else '"none"'
    return (
        f"from openai import OpenAI\n\nclient = OpenAI(base_url={url!r}, api_key={key})\n"
        f"answer = client.{make}.create(\n    {body},\n)\nprint(answer.choices[0].{text})\n"
    )


def javascript(served_name: str, *, chat: bool, url: str = ADDRESS, key_file: str | None = None) -> str:
    """Return the same request for Node.js 18 or later (a file that ends in .mjs), without any package."""
    body = json.dumps(_body(served_name, chat=chat), ensure_ascii=False, indent=2).replace("\n", "\n  ")
    place, text = ("chat/completions", "message.content") if chat else ("completions", "text")
    headers = '{ "Content-Type": "application/json" }'
    read_key = ""
    if key_file:
        read_key = (
            f'import {{ readFileSync }} from "node:fs";\n\nconst key = readFileSync({json.dumps(key_file)}, "utf8");\n'
        )
        headers = '{ "Content-Type": "application/json", Authorization: `Bearer ${key}` }'
    return (
        f"{read_key}const answer = await fetch({json.dumps(f'{url}/{place}')}, {{\n"
        f'  method: "POST",\n  headers: {headers},\n  body: JSON.stringify({body}),\n}});\n'
        f"console.log((await answer.json()).choices[0].{text});\n"
    )


def boto3(endpoint: str, region: str) -> str:
    """Return the same request to a SageMaker endpoint, whose container serves one model (`pip install boto3`)."""
    body = {"model": "model", "prompt": CODE_PROMPT, "max_tokens": TOKENS}
    return (
        f'import json\n\nimport boto3\n\nruntime = boto3.client("sagemaker-runtime", region_name={region!r})\n'
        f'answer = runtime.invoke_endpoint(\n    EndpointName={endpoint!r}, ContentType="application/json",\n'
        f'    Body=json.dumps({body!r}),\n)\nprint(json.load(answer["Body"])["choices"][0]["text"])\n'
    )


CLIENTS = {"curl": curl, "Python": python, "JavaScript": javascript}
"""Writers of a first request, by the language's name."""


def _body(served_name: str, *, chat: bool) -> dict[str, Any]:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": PROMPT}]} if chat else {"prompt": CODE_PROMPT}
    return {"model": served_name, **body, "max_tokens": TOKENS, "temperature": 0}
