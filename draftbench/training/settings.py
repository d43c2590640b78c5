"""How a draft is trained: the flags of `train`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from draftbench.errors import UsageError
from draftbench.flags import flag

in_training = partial(flag, panel="Training")
# Wider models take smaller steps, by the reciprocal of their width (Yang et al. 2022, muP): 1e-5 at
# a width of 2048, as models of that size are usually tuned. At a width of 128, which gives 1.6e-4,
# rates of 1e-4 and 2e-4 gained 2.2 and 2.6 points, 4e-4 lost one at first, and 1.2e-3 lost four.
RATE_TIMES_WIDTH = 0.02
# The largest seed of NumPy, which the trainer seeds too.
LARGEST_SEED = 2**32 - 1
# Adapters take ten times the steps (Schulman et al. 2025, "LoRA without regret").
LORA_TIMES = 10


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The recipe, for the parts of a forecast and for the whole training alike.

    Raises:
        UsageError: the learning rate is not a positive number.
    """

    epochs: int = in_training(4, "How many times to go through the responses, at most.", min=1)
    lora: int | None = in_training(
        None, "Train only adapters of this rank (LoRA): a quarter of the memory for weights.", min=1
    )
    learning_rate: float | None = in_training(
        None,
        "The largest learning rate (default: 0.02 / hidden size of the draft, ×10 with --lora).",
    )
    batch: int = in_training(8, "Train on this many responses a step.", min=1)
    seed: int = in_training(0, "Order the responses by this seed.", min=0, max=LARGEST_SEED)

    def __post_init__(self) -> None:
        rate = self.learning_rate
        if rate is not None and not 0 < rate < math.inf:
            raise UsageError(
                f"--learning-rate must be a positive number, not {rate:g}",
                hint="for example `--learning-rate 1e-4`, or leave it out",
            )

    def rate_for(self, width: int) -> float:
        """The learning rate for a draft of this width."""
        by_width = RATE_TIMES_WIDTH / width * (LORA_TIMES if self.lora else 1)
        return self.learning_rate or by_width

    def steps(self, responses: int) -> int:
        """The steps of a whole training on this many responses."""
        return math.ceil(responses / self.batch) * self.epochs
