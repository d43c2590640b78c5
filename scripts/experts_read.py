"""Shows what verification costs a mixture of experts: v(1) … v(8) as timed, and by the bytes of the
experts that passes read, as counted and by the formula for independent choices.

    OMP_NUM_THREADS=1 scripts/experts_read.py [TARGET]

Without a target, a mixture with random weights of about 300 MB in float32, more than a processor's
caches hold. Random routers choose nearly independently; those of a trained mixture do not.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from statistics import mean, median

import torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from draftbench.decoder.runner import clock_for
from draftbench.measure.step_costs import MOST_TURNS, CostGrid, _passes
from draftbench.models.check import check_models
from draftbench.models.quantize import Build, build_runner
from draftbench.models.source import ModelSource
from draftbench.records import SAMPLES_PER_VISIT

LARGEST, CONTEXT = 8, 64


def random_mixture(folder: str) -> str:
    """Eight layers of 64 experts, of which each token is sent to 4; no vocabulary to speak of."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=512, hidden_size=256, moe_intermediate_size=192, num_hidden_layers=8,
        num_experts=64, num_experts_per_tok=4, num_attention_heads=4, num_key_value_heads=2,
        head_dim=64, max_position_embeddings=512, norm_topk_prob=True, tie_word_embeddings=True,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("target", nargs="?")
    with tempfile.TemporaryDirectory() as folder:
        source = ModelSource(parser.parse_args().target or random_mixture(folder))
        runner, facts = build_runner(source, Build(torch.float32, "none", "cpu"), None)
        sheet = check_models(source, [], 1 << 60, dtype=torch.float32).target
