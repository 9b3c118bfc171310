"""Kernels are chosen in vLLM's order, and a verdict holds exactly as long as each of the kernel's conditions does."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.kernels import number_formats, table
from backend.domain.kernels.conditions import CHANNEL, Chip, Conditions, Layer, StoredLayout, unmet_conditions
from backend.domain.kernels.kernel_choice import choose_kernel, kernel_order, preferred_kernel, rounds_inputs
from backend.settings import CHECKOUT

A10G, T4, H100, B200 = (Chip("cuda", capability) for capability in ((8, 6), (7, 5), (9, 0), (10, 0)))
HALF_T4 = T4._replace(dtype="float16")
AMX = Chip("cpu", features=frozenset({"amx_int8"}))
WIDE = Layer("up", 4096, 14336, 4096)
AWQ = StoredLayout("wNa16", 4, 128, zero_points=True)

GROUPS = (CHANNEL, 2, 6, 8, 16, 32, 64, 96, 128, 192, 256)
CAPABILITIES = st.sampled_from([(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)])
CHIPS = st.one_of(
    st.builds(
        Chip, st.just("cuda"), CAPABILITIES, st.sampled_from(["float16", "bfloat16", "float32"]), st.just(frozenset())
    ),
    st.sampled_from([Chip("cpu"), AMX]),
)
LAYOUTS = st.one_of(
    st.builds(
        StoredLayout,
        st.just("wNa16"),
        st.sampled_from([4, 8]),
        st.sampled_from(GROUPS),
        st.booleans(),
        st.just("none"),
        st.sampled_from(["compressed-tensors", "autoawq"]),
    ),
    st.sampled_from([StoredLayout("int8", activations="dynamic"), StoredLayout("int8", activations="static")]),
    st.sampled_from([StoredLayout("fp8", activations="dynamic"), StoredLayout("fp8", activations="static")]),
)
LAYERS = st.builds(
    lambda inputs, outputs, cut, experts: Layer("up", inputs * 32 // cut, outputs * 4, inputs * 32, experts),
    st.integers(1, 128),
    st.integers(1, 512),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
)


@pytest.mark.parametrize(
    ("layout", "chip", "kernel"),
    [
        (AWQ, A10G, table.MARLIN),
        (AWQ._replace(group=32), H100, table.HUMMING),
        (AWQ, H100, table.MACHETE),
        (StoredLayout("wNa16", 8), A10G, table.MARLIN),
        (StoredLayout("wNa16", 4, 256), A10G, table.TRITON_W4A16),
        (StoredLayout("int8", activations="dynamic"), T4, table.CUTLASS_INT8),
        (StoredLayout("fp8", activations="dynamic"), Chip("cuda", (8, 9)), table.CUTLASS_FP8),
        (StoredLayout("fp8", activations="static"), B200, table.FLASHINFER_FP8),
        (StoredLayout("fp8", activations="dynamic"), A10G, table.HUMMING_FP8),
        (AWQ._replace(group=16), Chip("cpu"), table.CPU_W4A16),
        (AWQ, AMX, table.CPU_W4A8),
        (StoredLayout("int8", activations="dynamic"), Chip("cpu"), table.CPU_INT8),
    ],
)
def test_each_layout_gets_the_first_kernel_that_takes_it(
    layout: StoredLayout, chip: Chip, kernel: table.Kernel
) -> None:
    assert choose_kernel(layout, WIDE, chip).kernel == kernel


@pytest.mark.parametrize(
    ("layout", "layer", "chip", "title", "condition"),
    [
        (AWQ._replace(group=16), WIDE, A10G, "Marlin", "group-size"),
        (AWQ._replace(group=8), WIDE, A10G, "Marlin", "group-size"),
        (StoredLayout("wNa16", 4, 16), WIDE, HALF_T4, "Exllama", "group-size"),
        (AWQ._replace(group=16, format="autoawq"), WIDE, A10G, "vLLM", "group-size"),
        (StoredLayout("wNa16", 8, 128, zero_points=True), WIDE, A10G, "Marlin", "zero-points"),
        (AWQ, WIDE, A10G._replace(dtype="float32"), "Marlin", "dtype"),
        (AWQ, WIDE, Chip("cuda", (7, 0)), "vLLM", "compute-capability"),
        (StoredLayout("int8", activations="dynamic"), WIDE, B200, "CUTLASS", "compute-capability"),
        (StoredLayout("int8", activations="static"), WIDE._replace(experts=True), A10G, "vLLM", "activations"),
        (StoredLayout("wNa16", 8), WIDE._replace(experts=True), H100, "Humming", "group-size"),
        (AWQ, WIDE._replace(inputs=2080), A10G, "Marlin", "group-size"),
        (AWQ, WIDE._replace(outputs=100), Chip("cpu"), "vLLM's CPU kernel", "shape"),
        (StoredLayout("wNa16", 4, 192), WIDE, AMX, "vLLM's AMX kernel, W4A8", "group-size"),
        (StoredLayout("wNa16", 8), WIDE, Chip("cpu"), "KleidiAI W4A8", "bits"),
    ],
)
def test_what_no_kernel_computes_right_is_refused_by_its_condition(
    layout: StoredLayout, layer: Layer, chip: Chip, title: str, condition: str
) -> None:
    choice = choose_kernel(layout, layer, chip)
    assert choice.kernel is None and choice.unmet is not None
    assert (choice.title, choice.unmet.condition) == (title, condition), choice
    assert choice.source and choice.unmet.words


@given(LAYOUTS, LAYERS, CHIPS)
def test_a_kernel_that_serves_meets_every_condition_and_is_the_one_that_vllm_takes(
    layout: StoredLayout, layer: Layer, chip: Chip
) -> None:
    choice = choose_kernel(layout, layer, chip)
    if choice.kernel is None:
        assert choice.unmet is not None and choice.title and choice.source
        return
    kernel = choice.kernel
    assert kernel == preferred_kernel(layout, layer, chip)
    assert not unmet_conditions(kernel.asks, layout, layer, chip, table.INSTALLED)
    assert not unmet_conditions(kernel.needs, layout, layer, chip, table.INSTALLED)
    own = [each for each in kernel_order(layout, layer, chip) if not each.optional]
    assert any(not unmet_conditions(each.asks, layout, layer, chip, table.INSTALLED) for each in own)


LISTS = [kernels for rows in (table, number_formats) for kernels in (*rows.LINEAR.values(), *rows.EXPERTS.values())]
KERNELS = sorted({kernel for kernels in LISTS for kernel in kernels}, key=repr)


Case = tuple[StoredLayout, Layer, Chip]


def changed_layouts(conditions: Conditions, layout: StoredLayout) -> list[StoredLayout]:
    """The layout with one thing changed, once for each condition on it."""
    own = [layout._replace(bits=3)] if conditions.types else []
    own += [layout._replace(activations="none")] if conditions.activations else []
    own += [layout._replace(group=CHANNEL)] if conditions.grouped else []
    if layout.group == CHANNEL:
        return own
    odd = {
        7: bool(conditions.groups),
        layout.group + 1: conditions.group_multiple > 1,
        conditions.least_group - 1: conditions.least_group > 0,
        conditions.group_block * 3 // 2: conditions.group_block > 0,
    }
    return own + [layout._replace(group=size) for size, applies in odd.items() if applies]


def changed_layers(conditions: Conditions, layer: Layer, group: int) -> list[Layer]:
    """The layer with one size changed, once for each condition on it."""
    own = [layer._replace(inputs=layer.inputs + 1)] if conditions.inputs_multiple > 1 else []
    own += (
        [layer._replace(outputs=layer.outputs + 1)]
        if conditions.outputs_multiple > 1 or conditions.packed_outputs
        else []
    )
    if conditions.even_groups and group != CHANNEL:
        own.append(layer._replace(inputs=group + 1, all_inputs=group + 1))
    return own


def changed_chips(conditions: Conditions, chip: Chip) -> list[Chip]:
    """The chip with one thing changed, once for each condition on it."""
    own = [chip._replace(dtype="int4")] if conditions.dtypes else []  # type: ignore[arg-type]
    own += [chip._replace(features=frozenset())] if conditions.feature else []
    if chip.capability is None:
        return own
    own += [chip._replace(capability=(conditions.lowest[0] - 1, conditions.lowest[1]))] if conditions.lowest else []
    return own + ([chip._replace(capability=conditions.below)] if conditions.below else [])


def broken(conditions: Conditions, layout: StoredLayout, layer: Layer, chip: Chip) -> list[Case]:
    """The case with one thing changed, once for each condition of a kernel that takes it."""
    cases: list[Case] = [(each, layer, chip) for each in changed_layouts(conditions, layout)]
    cases += [(layout, each, chip) for each in changed_layers(conditions, layer, layout.group)]
    return cases + [(layout, layer, each) for each in changed_chips(conditions, chip)]


@given(st.sampled_from(KERNELS), LAYOUTS, LAYERS, CHIPS)
def test_changing_one_thing_that_a_kernel_asks_for_ends_that_it_takes_the_layer(
    kernel: table.Kernel, layout: StoredLayout, layer: Layer, chip: Chip
) -> None:
    for request in (kernel.asks, kernel.needs):
        if unmet_conditions(request, layout, layer, chip, table.INSTALLED):
            continue
        for case in broken(request, layout, layer, chip):
            assert unmet_conditions(request, *case, table.INSTALLED), case
        if request.package:
            assert unmet_conditions(request, layout, layer, chip, frozenset())


def test_an_unknown_gpu_is_refused_for_nothing_that_only_its_capability_decides() -> None:
    unknown = Chip("cuda")
    for layout in (AWQ, StoredLayout("int8", activations="dynamic"), StoredLayout("fp8", activations="static")):
        assert choose_kernel(layout, WIDE, unknown).kernel is not None
    assert choose_kernel(AWQ._replace(group=16), WIDE, unknown).kernel is None
    assert rounds_inputs("fp8", None) and rounds_inputs("fp8", (8, 9)) and not rounds_inputs("fp8", (8, 6))


def test_every_kernel_names_its_source_and_installed_packages_are_in_the_lock() -> None:
    assert all(kernel.source.startswith("vLLM 0.32.0") and kernel.title for kernel in KERNELS)
    assert all(kernel.needs_source for kernel in KERNELS if kernel.needs != Conditions())
    lock = (CHECKOUT / "assets/locks/serve-gpu.txt").read_text(encoding="utf-8")
    locked = set(re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE))
    optional = {kernel.asks.package for kernel in KERNELS if kernel.optional}
    assert optional & locked == table.INSTALLED
    assert optional - table.INSTALLED == {"b12x", "conch-triton-kernels", "zentorch"}
    assert "vllm==0.32.0" in lock and table.VLLM == "vLLM 0.32.0"
