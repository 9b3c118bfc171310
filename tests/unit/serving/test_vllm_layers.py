"""Layers that are alike are compiled once: by torch itself, on layers named as vLLM names its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd

from backend.serving.vllm_plugin.whetstone_layers import is_plain, of_one_kind, once, present, region

COUNT, WIDTH = 5, 8


class LinearBase(nn.Linear):
    quant_method: Any = None
    scheme: Any = None


class UnquantizedLinearMethod: ...


class CompressedTensorsLinearMethod: ...


class CompressedTensorsW8A8Int8: ...


class CompressedTensorsWNA16: ...


class Layer(nn.Module):
    def __init__(self, method: Any = None, scheme: Any = None, kv_cache_dtype: str = "auto") -> None:
        super().__init__()
        self.product = LinearBase(WIDTH, WIDTH)
        self.product.quant_method, self.product.scheme = method or UnquantizedLinearMethod(), scheme
        self.kv_cache_dtype = kv_cache_dtype

    def forward(self, positions: Any, hidden_states: Any, residual: Any) -> Any:
        residual = hidden_states if residual is None else hidden_states + residual
        return self.product(torch.sin(residual)), residual


class Model(nn.Module):
    def __init__(self, kind: type[Layer], *items: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = once(lambda: (0, COUNT, nn.ModuleList(kind(*items) for _ in range(COUNT))))()[2]

    def forward(self, hidden: Any) -> Any:
        residual = None
        for layer in self.layers:
            hidden, residual = layer(None, hidden, residual)
        return hidden + residual


def named(name: str) -> type[Layer]:
    return type(name, (Layer,), {"forward": Layer.forward})


def graphs(model: Model, hidden: torch.Tensor) -> tuple[torch.Tensor, list[Any]]:
    """What the compiled model answers, and the calls in the graph that Inductor is given of it."""
    observed: list[Any] = []

    def keep(graph: Any, _examples: Any) -> Any:
        observed.extend(node for node in graph.graph.nodes if node.op == "call_function")
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    return torch.compile(model, backend=aot_autograd(fw_compiler=keep), fullgraph=True)(hidden), observed


def is_sine(node: Any) -> bool:
    return node.target is torch.ops.aten.sin.default


def test_layers_that_are_alike_are_one_part_that_is_called_for_each_but_the_first() -> None:
    model, hidden = Model(named("LlamaDecoderLayer")), torch.randn(2, WIDTH)
    with torch.no_grad():
        plain = model(hidden)
        answer, calls = graphs(model, hidden)
    parts = [node for node in calls if str(node.target) == "invoke_subgraph"]
    assert len(parts) == COUNT - 1 and len({node.args[0].target for node in parts}) == 1
    assert sum(is_sine(node) for node in calls) == 1, "only the first stands in the graph itself"
    torch.testing.assert_close(answer, plain)


def test_layers_that_were_never_tried_are_compiled_as_vllm_compiles_them() -> None:
    with torch.no_grad():
        _, calls = graphs(Model(named("OtherDecoderLayer")), torch.randn(2, WIDTH))
    assert sum(map(is_sine, calls)) == COUNT


@pytest.mark.parametrize(
    ("method", "scheme", "cache", "plain"),
    [
        (UnquantizedLinearMethod(), None, "auto", True),
        (CompressedTensorsLinearMethod(), CompressedTensorsW8A8Int8(), "auto", True),
        (CompressedTensorsLinearMethod(), CompressedTensorsWNA16(), "auto", False),
        (SimpleNamespace(), None, "auto", False),
        (UnquantizedLinearMethod(), None, "fp8", False),
    ],
)
def test_only_products_that_were_tried_are_marked(method: Any, scheme: Any, cache: str, plain: bool) -> None:
    assert is_plain(Layer(method, scheme, cache)) is plain
    model = Model(named("Qwen3DecoderLayer"), method, scheme, cache)
    assert {layer.alike for layer in model.layers} == {plain}


def test_a_draft_of_other_weights_is_left_alone_though_its_class_is_the_models() -> None:
    kind, hidden = named("LlamaDecoderLayer"), torch.randn(2, WIDTH)
    Model(kind)
    with torch.no_grad():
        _, calls = graphs(Model(kind, CompressedTensorsLinearMethod(), CompressedTensorsWNA16()), hidden)
    assert sum(map(is_sine, calls)) == COUNT and not any(str(node.target) == "invoke_subgraph" for node in calls)


def test_a_class_is_marked_once_however_many_models_have_it() -> None:
    kind = named("LlamaDecoderLayer")
    Model(kind)
    first = kind.forward
    Model(kind)
    assert kind.forward is first and not hasattr(region(Layer.forward), "__wrapped__")


def test_an_absent_argument_is_a_tensor_of_nothing_and_all_else_as_torch_knows_it() -> None:
    known = present(lambda node: node)
    assert known(None).numel() == 0 and known("a node") == "a node"


def test_tensors_and_what_torch_does_not_hold_opaque_are_compared_as_torch_does() -> None:
    same = of_one_kind(lambda new, old, *_, check_storage: (new == old, check_storage))
    assert same(1, 2, {}, check_storage=False) == (False, False)
    assert same(2, 2, {}) == (True, True)
