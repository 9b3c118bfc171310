"""How a variant is served and asked outside the studio: vLLM's command for a shell, and a client in curl and in
Python."""

from __future__ import annotations

import json
import shlex
from typing import Any

from backend.domain.evaluation import vllm_flags
from backend.domain.evaluation.document import Variant

ADDRESS = "http://127.0.0.1:8000/v1"
"""Where `vllm serve` answers unless it is told otherwise."""
ASKED = "Explain in two sentences what a key-value cache is."
CONTINUED = "def read_lines(path):"
TOKENS = 128


def command(variant: Variant) -> str:
    """One line for a shell with vLLM in it. The variant has a folder."""
    draft = variant.speculation.draft_path if variant.speculation else None
    flags = [
        *vllm_flags.serving_flags(variant.serving),
        *vllm_flags.speculation_flags(variant.speculation, draft or ""),
    ]
    proposers = variant.speculation.proposers if variant.speculation else None
    code = f"PYTHONPATH={shlex.quote(proposers)} " if proposers else ""
    return code + shlex.join(["vllm", "serve", str(variant.model_path), f"--served-model-name={variant.name}", *flags])


def curl(served_name: str, *, chat: bool, url: str = ADDRESS, key_file: str | None = None) -> str:
    """One question to a server that answers at `url`; `chat` puts the model's own template around it. `key_file` holds
    the key that the server wants, where it wants one."""
    body = shlex.quote(json.dumps(_body(served_name, chat=chat), ensure_ascii=False))
    place = "chat/completions" if chat else "completions"
    key = f'  -H "Authorization: Bearer $(cat {shlex.quote(key_file)})" \\\n' if key_file else ""
    return f"curl {shlex.quote(f'{url}/{place}')} \\\n{key}  -H 'Content-Type: application/json' \\\n  -d {body}"


def python(served_name: str, *, chat: bool, url: str = ADDRESS, key_file: str | None = None) -> str:
    """The same with OpenAI's client (`pip install openai`)."""
    asked = ",\n    ".join(f"{name}={value!r}" for name, value in _body(served_name, chat=chat).items())
    make, text = ("chat.completions", "message.content") if chat else ("completions", "text")
    key = f"open({key_file!r}).read()" if key_file else '"none"'
    return (
        f"from openai import OpenAI\n\nclient = OpenAI(base_url={url!r}, api_key={key})\n"
        f"answer = client.{make}.create(\n    {asked},\n)\nprint(answer.choices[0].{text})\n"
    )


def boto3(endpoint: str, region: str) -> str:
    """The same of a SageMaker endpoint, whose container serves the model under one name (`pip install boto3`)."""
    asked = {"model": "model", "prompt": CONTINUED, "max_tokens": TOKENS}
    return (
        f'import json\n\nimport boto3\n\nruntime = boto3.client("sagemaker-runtime", region_name={region!r})\n'
        f'answer = runtime.invoke_endpoint(\n    EndpointName={endpoint!r}, ContentType="application/json",\n'
        f'    Body=json.dumps({asked!r}),\n)\nprint(json.load(answer["Body"])["choices"][0]["text"])\n'
    )


def _body(served_name: str, *, chat: bool) -> dict[str, Any]:
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": ASKED}]} if chat else {"prompt": CONTINUED}
    return {"model": served_name, **asked, "max_tokens": TOKENS}
