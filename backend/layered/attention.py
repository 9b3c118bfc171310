"""Causal attention in 16 bit on a processor: blocks of queries against the keys they may see, or the one query of a
next token.

torch's own kernel computes 16-bit attention on processors several times slower than the products it is made of, and
heads that share keys have them copied first. Where anything but a plain mask is asked, torch's kernel is called as
before. Knows tensors and transformers' interface only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

NAME = "whetstone_blocked"
BLOCK = 128
"""Queries per block; scores above the diagonal inside a block are computed in vain."""
NEAR = 1 << 20
"""Bytes of scores computed at a time, which fit a core's cache; with more, softmax waits for memory."""


def install(model: Any) -> None:
    """Let `model` use this attention, if its family lets attention be chosen and it uses torch's kernel now."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    if model.config.get_text_config()._attn_implementation != "sdpa" or not model._can_set_attn_implementation():
        return
    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)


def _attend(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, **options: Any
) -> tuple[torch.Tensor, None]:
    """transformers' attention function: `query` [batch, heads, tokens, head size]; returns [batch, tokens, heads, head
    size]."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    scale = options.get("scaling") or query.shape[-1] ** -0.5
    if query.shape[2] == 1 and query.device.type == "cpu" and not _special(options):
        return next_token(query * scale, key, value, mask).transpose(1, 2).contiguous(), None
    if mask is not None or not _plain(module, query, key, options):
        attended: tuple[torch.Tensor, None] = sdpa_attention_forward(module, query, key, value, mask, **options)
        return attended
    query, key, value = ((query * scale).bfloat16(), key.bfloat16(), value.bfloat16())
    return causal(query, key, value).transpose(1, 2).contiguous(), None


def _plain(module: Any, query: torch.Tensor, key: torch.Tensor, options: dict[str, Any]) -> bool:
    import torch

    stated = options.get("is_causal")
    causal = stated if stated is not None else getattr(module, "is_causal", True)
    on_processor = query.device.type == "cpu" and torch.is_autocast_enabled("cpu")
    return bool(on_processor and causal and not _special(options) and query.shape[2] == key.shape[2])


def _special(options: dict[str, Any]) -> bool:
    return any(options.get(name) is not None for name in ("position_bias", "softcap", "s_aux")) or bool(
        options.get("dropout")
    )


def next_token(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Compute softmax(Q K' + mask) V for Q [batch, heads, 1, head size], which is scaled already.

    K and V have as many heads or fewer. The `mask` [batch, 1, 1, tokens] says which keys may be seen, or is added.
    """
    import torch

    grouped = query.reshape(query.shape[0], key.shape[1], -1, query.shape[3])
    scores = grouped @ key.transpose(2, 3)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return (scores.float().softmax(-1).to(value.dtype) @ value).view(query.shape)


def causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Compute softmax(Q K' + causal mask) V for Q [batch, heads, tokens, head size], which is scaled already.

    K and V have as many heads or fewer; heads that share keys stand under each other in one product.
    """
    import torch

    # 1. Put the heads that share keys under each other: [key heads, sharing, tokens, size].
    sharing = query.shape[1] // key.shape[1]
    queries = query.reshape(-1, sharing, *query.shape[2:])
    keys, values = key.flatten(0, 1), value.flatten(0, 1)
    out = torch.empty_like(queries)
    above = torch.full((BLOCK, BLOCK), -torch.inf, dtype=query.dtype).triu(1)

    # 2. Attend so many heads at a time that their scores fit the cache.
    size = max(1, NEAR // (BLOCK * sharing * query.shape[2] * query.element_size()))
    for start in range(0, len(out), size):
        heads = slice(start, start + size)
        _causal(queries[heads], keys[heads], values[heads], out[heads], above)
    return out.view(query.shape)


def _causal(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor, above: torch.Tensor
) -> None:
    """Fill `out`, like `query` [heads, sharing, tokens, head size]; `key` and `value` [heads, tokens, head size].

    `above` [block, block] is the mask inside a block on the diagonal.
    """
    import torch

    heads, sharing, tokens, size = query.shape
    for start in range(0, tokens, BLOCK):
        # A block of queries sees the keys up to its own end; inside the block the mask is added.
        stop = min(start + BLOCK, tokens)
        rows = query[:, :, start:stop].reshape(heads, -1, size)
        scores = torch.bmm(rows, key[:, :stop].transpose(1, 2))
        scores.view(heads, sharing, -1, stop)[..., start:] += above[: stop - start, : stop - start]
        attended = torch.bmm(torch.softmax(scores, -1, dtype=scores.dtype), value[:, :stop])
        out[:, :, start:stop] = attended.view(heads, sharing, -1, size)
