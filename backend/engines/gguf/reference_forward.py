"""The forward pass of a GGUF file by its own keys and tensors, as llama.cpp computes it, in numpy and a layer at a
time.

It shares nothing with the conversion: no config, no names of transformers, no reordered rows. Sources, all of
llama.cpp: src/models/llama.cpp, qwen2.cpp and qwen3.cpp for the layers, `build_moe_ffn` (src/llama-graph.cpp) for
experts, `rope_yarn` (ggml/src/ggml-cpu/ops.cpp) for rotation, `llama_context` (src/llama-context.cpp) for the scale of
YaRN.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from backend.engines.gguf.gguf_file import GgufFile, rounded

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


class Reference:
    """Weights are rounded to bfloat16, as they are stored in the model folder; all else is in 32 bits."""

    def __init__(self, stored: GgufFile) -> None:
        self.stored = stored
        self.kind = str(stored.values["general.architecture"])
        self.heads = int(self._key("attention.head_count"))
        self.kv_heads = int(self._key("attention.head_count_kv", self.heads))
        self.size = int(self._key("attention.key_length", int(self._key("embedding_length")) // self.heads))
        self.epsilon = float(self._key("attention.layer_norm_rms_epsilon"))
        self.layers = int(self._key("block_count"))

    def _key(self, name: str, default: Any = None) -> Any:
        return self.stored.values.get(f"{self.kind}.{name}", default)

    def embed(self, tokens: list[int]) -> Array:
        """Return what enters the first layer [tokens, hidden]."""
        return _float(self.stored.floats("token_embd.weight", tokens))

    def layer(self, number: int, entering: Array, positions: list[int]) -> Array:
        """Return what leaves layer `number` [tokens, hidden]; the tokens stand at these positions, in order."""
        block = f"blk.{number}."
        attended = entering + self._attention(block, self._norm(entering, f"{block}attn_norm"), positions)
        fed = self._norm(attended, f"{block}ffn_norm")
        if f"{block}ffn_gate_inp.weight" in self.stored:
            return attended + self._experts(block, fed)
        return attended + self._gated(fed, *(f"{block}ffn_{part}" for part in ("gate", "up", "down")))

    def logits(self, leaving: Array) -> Array:
        """Compute logits [tokens, vocabulary] from what left the last layer."""
        import numpy as np

        name = "output.weight" if "output.weight" in self.stored else "token_embd.weight"
        normed = self._norm(leaving, "output_norm")
        rows = len(self.stored.lists["tokenizer.ggml.tokens"])
        pieces = self.stored.pieces(name, normed.shape[1], rows)
        return np.concatenate([normed @ _float(piece).T for piece in pieces], axis=1)

    def _norm(self, rows: Array, name: str) -> Array:
        import numpy as np

        scale = np.sqrt((rows * rows).mean(-1, keepdims=True) + np.float32(self.epsilon))
        return np.asarray(rows / scale * _float(self.stored.floats(f"{name}.weight")))

    def _linear(self, rows: Array, name: str) -> Array:
        product = rows @ _float(self.stored.floats(f"{name}.weight")).T
        if f"{name}.bias" in self.stored:
            product = product + _float(self.stored.floats(f"{name}.bias"))
        return product

    def _attention(self, block: str, rows: Array, positions: list[int]) -> Array:
        import numpy as np

        count = len(rows)
        queries = self._linear(rows, f"{block}attn_q").reshape(count, self.heads, self.size)
        keys = self._linear(rows, f"{block}attn_k").reshape(count, self.kv_heads, self.size)
        values = self._linear(rows, f"{block}attn_v").reshape(count, self.kv_heads, self.size)
        if f"{block}attn_q_norm.weight" in self.stored:
            queries, keys = self._norm(queries, f"{block}attn_q_norm"), self._norm(keys, f"{block}attn_k_norm")
        queries, keys = self._rotated(queries, positions), self._rotated(keys, positions)
        # Query heads that share keys stand next to each other.
        shared = self.heads // self.kv_heads
        keys, values = np.repeat(keys, shared, axis=1), np.repeat(values, shared, axis=1)
        scores = np.einsum("qhd,khd->hqk", queries, keys) / np.float32(math.sqrt(self.size))
        scores = np.where(np.tri(count, dtype=bool), scores, np.float32(-np.inf))
        mixed = np.einsum("hqk,khd->qhd", _softmax(scores), values)
        return self._linear(mixed.reshape(count, -1), f"{block}attn_output")

    def _rotated(self, rows: Array, positions: list[int]) -> Array:
        """`rows` [tokens, heads, size]: pairs side by side (llama), or half a head apart (Qwen)."""
        import numpy as np

        angles = np.array(positions, np.float32)[:, None] * self._frequencies().astype(np.float32)
        scale = np.float32(self._rotation_scale())
        cosines, sines = np.cos(angles)[:, None] * scale, np.sin(angles)[:, None] * scale
        rotated = np.empty_like(rows)
        half = self.size // 2
        side_by_side = (slice(0, None, 2), slice(1, None, 2))
        first, second = side_by_side if self.kind == "llama" else (slice(0, half), slice(half, None))
        rotated[..., first] = rows[..., first] * cosines - rows[..., second] * sines
        rotated[..., second] = rows[..., first] * sines + rows[..., second] * cosines
        return rotated

    def _scaling(self) -> tuple[str, float]:
        kind = str(self._key("rope.scaling.type", "linear"))
        factor = float(self._key("rope.scaling.factor", self._key("rope.scale_linear", 0.0))) or 1.0
        return kind, 1.0 if kind == "none" else factor

    def _rotation_scale(self) -> float:
        kind, factor = self._scaling()
        return 1.0 + 0.1 * math.log(factor) if kind == "yarn" and factor > 1 else 1.0

    def _frequencies(self) -> Array:
        """Radians a position for each pair [size / 2]."""
        import numpy as np

        base = float(self._key("rope.freq_base", 10000.0))
        kind, factor = self._scaling()
        pairs = np.arange(self.size // 2)
        plain = base ** (-2.0 * pairs / self.size)
        if "rope_freqs.weight" in self.stored:
            plain = plain / self.stored.floats("rope_freqs.weight")
        if kind != "yarn":
            return np.asarray(plain / factor)
        # Pairs that turn often keep their frequency, those that turn seldom are slowed, between them a ramp.
        trained = float(self._key("rope.scaling.original_context_length", 0) or self._key("context_length"))

        def turning(times: float) -> float:
            return self.size * math.log(trained / (times * 2 * math.pi)) / (2 * math.log(base))

        low = max(0.0, math.floor(turning(float(self._key("rope.scaling.yarn_beta_fast", 0) or 32.0))))
        high = min(self.size - 1.0, math.ceil(turning(float(self._key("rope.scaling.yarn_beta_slow", 0) or 1.0))))
        unscaled = 1.0 - np.clip((pairs - low) / max(0.001, high - low), 0.0, 1.0)
        return np.asarray(plain / factor * (1.0 - unscaled) + plain * unscaled)

    def _gated(self, rows: Array, gate: str, up: str, down: str) -> Array:
        return self._linear(_silu(self._linear(rows, gate)) * self._linear(rows, up), down)

    def _experts(self, block: str, rows: Array) -> Array:
        """The chosen experts of each token, weighted by the softmax over all, renormalized over those chosen."""
        import numpy as np

        weights = _softmax(self._linear(rows, f"{block}ffn_gate_inp"))
        chosen = np.argsort(-weights, axis=1, kind="stable")[:, : int(self._key("expert_used_count"))]
        shares = np.take_along_axis(weights, chosen, axis=1)
        shares = shares / shares.sum(1, keepdims=True)
        result = np.zeros_like(rows)
        for expert in np.unique(chosen):
            token, place = np.nonzero(chosen == expert)
            gate, up, down = (self._expert(block, part, int(expert)) for part in ("gate", "up", "down"))
            inner = _silu(rows[token] @ gate.T) * (rows[token] @ up.T)
            result[token] += inner @ down.T * shares[token, place, None]
        return result

    def _expert(self, block: str, part: str, expert: int) -> Array:
        """Read one expert's matrix [out, in], from a stack or, in older files, its own tensor."""
        stack = f"{block}ffn_{part}_exps.weight"
        if stack in self.stored:
            return _float(self.stored.floats(stack, expert))
        return _float(self.stored.floats(f"{block}ffn_{part}.{expert}.weight"))


def _float(values: Array) -> Array:
    """Rounded to bfloat16, in 32-bit floats."""
    whole: Array = rounded(values).float().numpy()
    return whole


def _silu(rows: Array) -> Array:
    import numpy as np

    return np.asarray(rows / (1 + np.exp(-rows)))


def _softmax(scores: Array) -> Array:
    import numpy as np

    raised = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(raised / raised.sum(-1, keepdims=True))
