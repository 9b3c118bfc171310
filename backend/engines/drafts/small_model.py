"""A small model of the target's tokenizer, which vLLM serves beside it as `draft_model`: fresh and narrow, or pruned
from it.

A fresh one is a Llama whose embedding, tied to its head, is the target's own in its leading principal components: what
the target knows of tokens being alike is kept, and with a vocabulary of tens of thousands that is nearly all of the
model. A pruned one has layers of the target spread over its depth, the first and the last among them, with its
embedding, norm and head (as the student of DistilBERT is begun, Sanh et al. 2019, arXiv 1910.01108, section 3). Weights
are learned in fp32, products in bfloat16 (decision 0003), and saved in bfloat16.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.domain.recipe.draft_training import Training
from backend.engines.drafts import acceptance
from backend.engines.drafts.generation import Sampling, generate
from backend.engines.drafts.losses import Loss, through_head
from backend.engines.drafts.proposer import Batch, Proposer, write
from backend.engines.drafts.target import Target
from backend.layered.matrix_products import half_precision

if TYPE_CHECKING:
    import torch

FRESH_LAYERS, PRUNED_LAYERS, FRESH_HIDDEN, HEAD = 2, 4, 256, 64
"""Defaults for options that are not given."""
SPREAD = 0.02
"""Standard deviation of a fresh embedding, as of Llama's initial weights."""
COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)


class Small(Proposer):
    """A small model as a proposer: it draws from its own distribution."""

    def __init__(self, target: Target, options: Training) -> None:
        import torch

        super().__init__(target, options)
        with torch.random.fork_rng():
            torch.manual_seed(options.seed)
            self.model = (fresh if options.start == "fresh" else pruned)(target, options)
        self.model.to(target.device).train()

    @property
    def modules(self) -> torch.nn.Module:
        module: torch.nn.Module = self.model
        return module

    def loss(self, batch: Batch, loss: Loss) -> torch.Tensor:
        places = batch.predicting
        final = batch.final[places]
        with half_precision(batch.tokens.device.type):
            states = self._states(batch)[places]
            return through_head(states, self._head, lambda rows: batch.target.logits(final[rows]), loss)

    def accepted(self, batch: Batch, tokens: int) -> torch.Tensor:
        import torch

        # Of each position that predicts a token of the answer; a small model reads nothing but tokens.
        places, accepted = batch.predicting, torch.zeros(batch.tokens.shape, device=batch.tokens.device)
        with torch.no_grad(), half_precision(batch.tokens.device.type):
            states, final = self._states(batch)[places], batch.final[places]
            accepted[places] = acceptance.acceptance_by_rows(
                batch.next[places],
                lambda rows: states[rows] @ self._head.T,
                lambda rows: batch.target.logits(final[rows]),
                batch.temperature[:, None].expand_as(accepted)[places],
                certain=self.certain,
            )
        return acceptance.chained(accepted, tokens)

    def answer(self, prompts: list[list[int]], seed: int) -> list[list[int]]:
        sampling = Sampling(self.options.temperature, self.options.answer_tokens, seed)
        self.model.eval()
        answers = generate(self.model, prompts, self.target.ends, sampling)
        self.model.train()
        return [answer.tokens for answer in answers]

    def save(self, folder: Path) -> None:
        import shutil

        weights = dict(self.model.state_dict())
        if self.model.config.tie_word_embeddings:
            weights.pop("lm_head.weight", None)
        write(
            folder,
            weights,
            self.model.config.to_dict() | {"architectures": [type(self.model).__name__], "dtype": "bfloat16"},
        )
        for name in COPIED:
            if (self.target.folder / name).is_file():
                shutil.copyfile(self.target.folder / name, folder / name)

    def described(self) -> dict[str, Any]:
        config = self.model.config
        sizes = {"layers": config.num_hidden_layers, "hidden": config.hidden_size, "start": self.options.start}
        return {**super().described(), **sizes}

    @property
    def _head(self) -> torch.Tensor:
        weight: torch.Tensor = self.model.get_output_embeddings().weight
        return weight

    def _states(self, batch: Batch) -> torch.Tensor:
        """Compute the states [B, T, h] after the last norm."""
        states: torch.Tensor = self.model.base_model(
            batch.tokens, attention_mask=batch.real.long(), use_cache=False
        ).last_hidden_state
        return states


def fresh(target: Target, options: Training) -> Any:
    """Make a Llama of the target's vocabulary and positions in fp32, drawn from torch's global generator."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    # 1. Choose a width that the heads divide.
    hidden = min(options.hidden or FRESH_HIDDEN, target.embedding.shape[1])
    heads = max(1, hidden // HEAD)
    hidden = heads * (hidden // heads // 2 * 2)  # rotary embeddings turn pairs

    # 2. Describe the model.
    theirs = target.config
    config = LlamaConfig(
        vocab_size=target.embedding.shape[0],
        hidden_size=hidden,
        num_hidden_layers=options.layers or FRESH_LAYERS,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden // heads,
        intermediate_size=3 * hidden,
        max_position_embeddings=theirs.max_position_embeddings,
        tie_word_embeddings=True,
        bos_token_id=theirs.bos_token_id,
        eos_token_id=theirs.eos_token_id,
        pad_token_id=theirs.pad_token_id,
    )

    # 3. Make it, with what the target knows of tokens.
    model = LlamaForCausalLM(config).float()
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(leading(target.embedding, hidden))
    return model


def leading(embedding: torch.Tensor, width: int) -> torch.Tensor:
    """Return the embedding [V, H] in its principal components of largest variance [V, width], scaled to `SPREAD`.

    Signs are fixed, so that it is the same on every run.
    """
    import torch

    table = embedding.float()
    table = table - table.mean(0)
    _, vectors = torch.linalg.eigh((table.T @ table).double())
    vectors = vectors.flip(1)[:, :width]
    vectors = vectors * vectors.gather(0, vectors.abs().argmax(0, keepdim=True)).sign()
    leading: torch.Tensor = table @ vectors.float()
    return leading * (SPREAD / leading.std())


def pruned(target: Target, options: Training) -> Any:
    """Copy the target in fp32 with some of its layers, spread evenly from the first to the last."""
    from transformers import AutoModelForCausalLM

    # 1. Choose the layers.
    config = type(target.config).from_dict(target.config.to_dict())
    layers = spread(target.config.num_hidden_layers, options.layers or PRUNED_LAYERS)
    config.num_hidden_layers = len(layers)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[layer] for layer in layers]
    model = AutoModelForCausalLM.from_config(config).float()

    # 2. Copy every tensor from the same name in the target, with the chosen layer's number.
    theirs = target.model.state_dict()
    own = {}
    for name in model.state_dict():
        before, in_layer, rest = name.partition(".layers.")
        number, _, local = rest.partition(".")
        own[name] = theirs[f"{before}.layers.{layers[int(number)]}.{local}" if in_layer else name]
    model.load_state_dict(own)
    return model


def spread(layers: int, count: int) -> list[int]:
    """Choose `count` of so many layers, or all if there are no more; a single one is the first."""
    count = min(count, layers)
    return [round(number * (layers - 1) / max(1, count - 1)) for number in range(count)]
