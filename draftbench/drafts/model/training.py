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

from draftbench.drafts.heads.config import methods_of
from draftbench.errors import ModelError, UsageError
from draftbench.measure.trajectories import ScoredResponse
from draftbench.models.compatibility import check_pair
from draftbench.models.prequantized import stored_level
from draftbench.models.source import ModelSource
from draftbench.models.translation import keeps_ids
from draftbench.training.trainable import IGNORED, SMALLER, Batch, TrainingSize, side_by_side


def check(draft: ModelSource, target: ModelSource, lora: int | None) -> None:
    """A pair of models with the same ids, and a draft whose weights are not quantized."""
    if "eagle3" in methods_of(draft.raw_config):
        raise UsageError(
            f"`{draft.spec}` is an EAGLE-3 head", hint=f"write `--draft eagle3:{draft.spec}`"
        )
    check_pair(target, draft)
    if stored := stored_level(draft) or (
        "GGUF" if Path(draft.spec).resolve().suffix == ".gguf" else None
    ):
        raise ModelError(
            f"`{draft.name}` is stored as {stored}, which cannot be trained",
            hint="train the checkpoint that it was made from, and convert the result",
        )
    if not keeps_ids(target, draft):
        raise ModelError(
            f"`{draft.name}` has other token ids than the target, whose ids it would be trained on",
            hint="take a draft of the target's family",
        )


def size_of(
    draft: ModelSource, target: ModelSource, lora: int | None, *, samples: bool
) -> TrainingSize:
    """With the target beside it if that samples."""
    text, model = draft.config.get_text_config(), draft.skeleton
    parameters = trained = model.num_parameters()
    smaller = SMALLER
    if lora is not None:
        last = model.get_output_embeddings()  # gets no adapter
        linear = [m for m in model.modules() if isinstance(m, nn.Linear) and m is not last]
        trained = lora * sum(each.in_features + each.out_features for each in linear)
        parameters += trained
    else:
        smaller += ", or train adapters alone (`--lora 16`)"
    work = text.num_hidden_layers, text.hidden_size, text.vocab_size
    return TrainingSize(parameters, trained, work, int(samples), smaller)


def begin(draft: ModelSource, target: Any | None, device: str, lora: int | None) -> ModelInTraining:
    """Taught by the target if that is loaded."""
    return ModelInTraining(draft, device, target, lora)


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
