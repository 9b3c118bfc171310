"""Endpoints of this machine as configuration of other proxies: llama-swap, LiteLLM and vLLM's router. Pure.

Forms, read on 2026-11-26: llama-swap's config.example.yaml (`peers`), LiteLLM's docs/proxy/configs (`model_list`), and
src/vllm_router/parsers/parser.py of vllm-project/production-stack (`--service-discovery static`).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from typing import NamedTuple

FIRST_ANSWER_S = 900
"""Seconds that the other program waits for an answer to begin: the first request loads the model."""


class ExportedEndpoint(NamedTuple):
    """An endpoint as another program asks it. `base` ends before `/v1`; `chat` says that its model has a chat
    template."""

    name: str
    base: str
    key_file: str | None
    chat: bool

    @property
    def key_variable(self) -> str:
        """Return the environment variable that is to hold its key."""
        return "WHETSTONE_KEY_" + re.sub(r"[^A-Z0-9]+", "_", self.name.upper())


def llama_swap(endpoints: Sequence[ExportedEndpoint]) -> str:
    """Return a configuration of llama-swap in which each endpoint is a peer, since Whetstone loads and unloads it."""
    lines = [*_head("llama-swap -config FILE", endpoints), "peers:"]
    for each in endpoints:
        lines += [
            f"  {_quoted(each.name)}:",
            f"    proxy: {_quoted(each.base)}",
            f"    apiKey: {_quoted('${env.' + each.key_variable + '}')}",
            "    models:",
            f"      - {_quoted(each.name)}",
            "    timeouts:",
            f"      responseHeader: {FIRST_ANSWER_S}",
        ]
    return _text(lines, endpoints, empty="peers: {}")


def litellm(endpoints: Sequence[ExportedEndpoint]) -> str:
    """Return a configuration of LiteLLM's proxy: `openai/` asks chat, `text-completion-openai/` continues a text."""
    lines = [*_head("litellm --config FILE", endpoints), "model_list:"]
    for each in endpoints:
        provider = "openai" if each.chat else "text-completion-openai"
        lines += [
            f"  - model_name: {_quoted(each.name)}",
            "    litellm_params:",
            f"      model: {_quoted(f'{provider}/{each.name}')}",
            f"      api_base: {_quoted(f'{each.base}/v1')}",
            f"      api_key: {_quoted(f'os.environ/{each.key_variable}')}",
            f"      timeout: {FIRST_ANSWER_S}",
        ]
    return _text(lines, endpoints, empty="model_list: []")


def vllm_router(endpoints: Sequence[ExportedEndpoint]) -> str:
    """Return the command of vLLM's router. It passes the client's key on, so all endpoints behind it need the same
    key: that of the gateway, or that of the only endpoint."""
    lines = ["#!/bin/sh", "# The router passes each client's `Authorization` on to the endpoint."]
    if len({each.key_file for each in endpoints}) > 1:
        lines.append("# Each endpoint has a key of its own. Export with the gateway's address, so that one key does.")
    lines += [f"# The key of {each.name} is in {each.key_file}." for each in endpoints if each.key_file]
    command = [
        "vllm-router",
        "--service-discovery",
        "static",
        "--static-backends",
        ",".join(each.base for each in endpoints),
        "--static-models",
        ",".join(each.name for each in endpoints),
        "--routing-logic",
        "roundrobin",
        "--port",
        "8001",
    ]
    return _text([*lines, shlex.join(command)], endpoints, empty="# There is no endpoint to export.")


def _head(command: str, endpoints: Sequence[ExportedEndpoint]) -> list[str]:
    """Return comments that say how to use the file, and how its variables get the keys."""
    exports = [
        f'#   export {each.key_variable}="$(cat {shlex.quote(each.key_file)})"' for each in endpoints if each.key_file
    ]
    unknown = [f"#   export {each.key_variable}=KEY" for each in endpoints if not each.key_file]
    return [f"# Endpoints of Whetstone for `{command}`. Set the keys first:", *exports, *unknown]


def _text(lines: Sequence[str], endpoints: Sequence[ExportedEndpoint], *, empty: str) -> str:
    return "\n".join([*(lines if endpoints else [empty]), ""])


def _quoted(text: str) -> str:
    """Return a YAML string; JSON's are YAML's."""
    return json.dumps(text, ensure_ascii=False)


FORMS: dict[str, Callable[[Sequence[ExportedEndpoint]], str]] = {
    "llama-swap": llama_swap,
    "litellm": litellm,
    "vllm-router": vllm_router,
}
"""Writers of a configuration, by the program that reads it."""
