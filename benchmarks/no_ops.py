"""Steps that a server silently does not take: how many of them are found, and how often an honest server is accused.

.venv/bin/python -m benchmarks.no_ops [--honest 1000]

Each no-op and each honest run is a server's surface, log and counters, made of lines that vLLM 0.32.0 wrote
(tests/recorded, tests/fakes/engine_surface.py), read by what reads a real one.
"""

from __future__ import annotations

import argparse

from tests import no_ops, recorded_servers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--honest", type=int, default=1000)
    number = parser.parse_args().honest
    print("| what the server silently does | found by | evidence |\n|---|---|---|")
    pairs = [(no_op, no_op.found()) for no_op in no_ops.NO_OPS]
    for no_op, finding in pairs:
        print(f"| {no_op.name} | {finding.what if finding else '**missed**'} | {finding.words if finding else ''} |")
    alarms = no_ops.false_alarms(list(no_ops.honest_runs(number)))
    recorded = [(name, alarm) for name in recorded_servers.NAMES for alarm in recorded_servers.wrong(name)]
    print(f"\nFound: {sum(finding is not None for _, finding in pairs)} of {len(pairs)}.")
    real = f"{len(recorded)} in {len(recorded_servers.NAMES)} recorded servers"
    print(f"False alarms: {len(alarms)} in {number:,} honest runs at random, {real}.")
    return int(bool(alarms or recorded or not all(finding for _, finding in pairs)))


if __name__ == "__main__":
    raise SystemExit(main())
