"""What an evaluation ran on, in words."""

from __future__ import annotations

from backend.domain.machine.hardware_lines import hardware_line


def test_on_a_cluster_the_node_is_named() -> None:
    assert (
        hardware_line({"cpu": "AMD EPYC", "cores": 2, "node": "vm (10.0.0.7)"})
        == "AMD EPYC, 2 cores, node vm (10.0.0.7)"
    )
    assert hardware_line({"cpu": "AMD EPYC", "cores": 1}) == "AMD EPYC, 1 core"
