"""What 8 bits give on this processor, product by product: int8 against bfloat16 at 1, 4, 16 and 64 rows, both by
oneDNN.

    .venv/bin/python -m benchmarks.cpu_kernels [--width 2048] [--outputs 8192] [--seconds 2]

Processor seconds of one thread as well as wall time, so that a shared machine changes the figures less; the ratio says
what W8A8 can give at that number of streams. Weights are packed once, as vLLM does. 4 bits are vLLM's own kernel and
not tried here.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import torch

from backend.cli.output import table
from backend.hardware import probe

ROWS = (1, 4, 16, 64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--outputs", type=int, default=8192)
    parser.add_argument("--seconds", type=float, default=2.0, help="processor seconds of each product")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    weights = torch.randn(arguments.outputs, arguments.width)
    rows = []
    for count in ROWS:
        half, eight = (
            timed(created, arguments.seconds) for created in (bfloat16(weights, count), int8(weights, count))
        )
        ratios = [f"{before / after:.2f}" for before, after in zip(half, eight, strict=True)]
        rows.append((count, f"{half[0] * 1e6:.0f}", f"{eight[0] * 1e6:.0f}", *ratios))
    facts = probe.probe()
    print(
        f"{facts['cpu']}, {', '.join(facts['flags'])}, load {os.getloadavg()[0]:.1f}, {arguments.width} x "
        f"{arguments.outputs}, 1 thread"
    )
    print(table(("rows", "bf16 us", "int8 us", "processor time", "wall time"), rows))


def bfloat16(weights: torch.Tensor, rows: int) -> Callable[[], object]:
    packed = torch.ops.mkldnn._reorder_linear_weight(weights.bfloat16(), rows)
    inputs = torch.randn(rows, weights.shape[1]).bfloat16()
    return lambda: torch.ops.mkldnn._linear_pointwise(inputs, packed, None, "none", [], "")


def int8(weights: torch.Tensor, rows: int) -> Callable[[], object]:
    """8-bit inputs that are rounded already, a scale an output channel, bfloat16 out."""
    scale = weights.abs().amax(1) / 127
    packed = torch.ops.onednn.qlinear_prepack(
        (weights / scale[:, None]).round().to(torch.int8), [rows, weights.shape[1]]
    )
    inputs = torch.randint(0, 256, (rows, weights.shape[1]), dtype=torch.uint8)
    zero = torch.zeros(len(weights), dtype=torch.int64)
    return lambda: torch.ops.onednn.qlinear_pointwise(
        inputs, 0.02, 128, packed, scale, zero, None, 1.0, 0, torch.bfloat16, "none", [], ""
    )


def timed(work: Callable[[], object], seconds: float) -> tuple[float, float]:
    """(processor, wall) seconds of one call: the least of rounds."""
    work()
    best, spent = (float("inf"), float("inf")), 0.0
    while spent < seconds:
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(5):
            work()
        took, wall = (time.process_time() - cpu) / 5, (time.perf_counter() - began) / 5
        best, spent = (min(best[0], took), min(best[1], wall)), spent + 5 * took
    return best


if __name__ == "__main__":
    main()
