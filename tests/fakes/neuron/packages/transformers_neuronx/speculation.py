"""transformers_neuronx.speculation as far as it is used."""

from __future__ import annotations

from typing import Any

import neuron_recorder as recorder


class SpeculativeGenerator:
    def __init__(self, draft: Any, target: Any, k: int = 4, acceptor: Any = None) -> None:
        recorder.record("transformers_neuronx.speculation.SpeculativeGenerator", draft, target, k=k)
        assert k in target.speculation, f"the target has no graph for {k} tokens"
        self.target, self.draft = target, draft

    def sample(self, input_ids: Any, sequence_length: int, start_ids: Any = None, eos_token_id: Any = None) -> Any:
        recorder.record("transformers_neuronx.speculation.SpeculativeGenerator.sample", sequence_length=sequence_length)
        assert self.draft.on_device
        return self.target.sample(input_ids, sequence_length)
