"""A draft model in training: its weights in float32, its loss, its checkpoint.

If the target is greedy, a draft must only learn what it wrote: cross entropy on its tokens. If it
samples, a token is just one of those that it might have drawn, so the draft learns the distribution
from a pass of the target. Cross entropy with that distribution has its minimum at the same place as
KL(target || draft).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from draftbench.measure.trajectories import ScoredResponse
from draftbench.models.source import ModelSource

# Marks a token that is not learned, for PyTorch's cross entropy.
IGNORED = -100
# By name: `ids` [rows, tokens], `attended` (0: padding), `learned` (ids, or IGNORED), and the
# `temperature` at which the target wrote each row.
Batch = dict[str, Tensor]


def side_by_side(responses: Sequence[ScoredResponse], context: int) -> Batch:
    """Prompts and responses, padded at the end and cut at the context. The first token of a
    response is not learned, since it comes from the prefill and is never drafted.
    """
    rows = [[*r.prompt.tokens, *r.tokens][:context] for r in responses]
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    learned, attended = torch.full_like(ids, IGNORED), torch.zeros_like(ids)
    for at, (row, response) in enumerate(zip(rows, responses, strict=True)):
        ids[at, : len(row)], attended[at, : len(row)] = torch.tensor(row), 1
        first = len(response.prompt.tokens) + 1
        learned[at, first : len(row)] = ids[at, first : len(row)]
    heat = torch.tensor([r.trajectory.sampling.temperature for r in responses])
    return {"ids": ids, "attended": attended, "learned": learned, "temperature": heat}


class ModelInTraining:
    """A draft model in training; `teacher` is the target if that samples. With a `rank`, only
    adapters of that rank around the linear layers are trained.
    """

    def __init__(
        self, source: ModelSource, device: str, teacher: nn.Module | None, rank: int | None = None
    ) -> None:
        self.source, self.teacher = source, teacher
        self.module: Any = source.load(torch.float32, device).train().requires_grad_(True)
        if rank is not None:
            from peft import LoraConfig, inject_adapter_in_model

            torch.manual_seed(0)  # adapters begin with random numbers
            adapters = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")
            inject_adapter_in_model(adapters, self.module)
        config = source.config.get_text_config()
        self.width, self.context = config.hidden_size, config.max_position_embeddings

    def batch(self, responses: Sequence[ScoredResponse]) -> Batch:
        """Prompts and responses side by side, padded at the end."""
        return side_by_side(responses, self.context)

    def loss(self, batch: Batch) -> Tensor:
        """Mean nats for each learned token."""
        learned = batch["learned"][:, 1:]
        rows, places = (learned != IGNORED).nonzero(as_tuple=True)

        def logits(model: Any) -> Tensor:
            """Those that predict the learned tokens."""
            read = {"input_ids": batch["ids"], "attention_mask": batch["attended"]}
            answer: Tensor = model(**read, use_cache=False).logits
            return answer[rows, places].float()

        drafted, tokens = logits(self.module), learned[rows, places]
        if self.teacher is None:
            return functional.cross_entropy(drafted, tokens)
        width = drafted.shape[-1]  # either model's rows may be padded
        heat = batch["temperature"][rows, None]
        with torch.no_grad():
            drawn = (logits(self.teacher)[:, :width] / heat.clamp(min=1e-6)).softmax(-1)
            drawn = functional.pad(drawn, (0, width - drawn.shape[-1]))
            wanted = torch.where(heat > 0, drawn, functional.one_hot(tokens, width))
        return functional.cross_entropy(drafted, wanted)

    def save(self, folder: Path) -> None:
        """Write an ordinary checkpoint with the tokenizer, in the dtype that the configuration
        names, or else in that of most tensors. What adapters learned is added to the weights.
        """
        dtype, held = self.source.config.dtype, self.module.state_dict().items()
        weights = {n.replace(".base_layer.", "."): w for n, w in held if ".lora_" not in n}
        for name, layer in self.module.named_modules():
            if hasattr(layer, "get_delta_weight"):
                weights[f"{name}.weight"] = layer.weight + layer.get_delta_weight("default")
        if dtype is None:
            stored = self.source.stored_tensors().values()
            kinds = Counter(t.dtype for t in stored if t is not None and t.is_floating_point())
            dtype = kinds.most_common(1)[0][0] if kinds else torch.float32
        # Weights with two names, such as tied embeddings, are written once.
        cast = {w.data_ptr(): w.to(dtype) for w in weights.values()}
        written = {name: cast[w.data_ptr()] for name, w in weights.items()}
        self.module.save_pretrained(folder, state_dict=written)
        self.source.config.save_pretrained(folder)  # a trainer changes the module's
        self.source.tokenizer.save_pretrained(folder)
