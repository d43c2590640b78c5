"""What passes cost on models of known shapes with random weights: their time does not depend on
what the weights are. For a GPU that no checkpoint is at hand for.

    python scripts/bench_shapes.py --target 8b --draft 1b --levels none,int4 --device cuda
    python scripts/bench_shapes.py --target 32b --draft 1b --levels none,int4 --device cuda
    python scripts/bench_shapes.py --target 0.5b --draft 0.1b --levels none,int8,int4
"""

import argparse
import sys
from types import SimpleNamespace

import torch
from bench_costs import measure_costs
from bench_ratios import CONSOLE
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen2Config

from draftbench.decoder.device import default_dtype, make_ready, set_threads
from draftbench.decoder.llama import LlamaRunner
from draftbench.errors import DraftbenchError
from draftbench.models.quantize import check_level

# Hidden size, intermediate size, layers, heads, key heads, vocabulary.
SHAPES = {
    "32b": (Qwen2Config, (5120, 27648, 64, 40, 8, 152064), False),
    "8b": (LlamaConfig, (4096, 14336, 32, 32, 8, 128256), False),
    "1b": (LlamaConfig, (2048, 8192, 16, 32, 8, 128256), True),
    "0.5b": (Qwen2Config, (896, 4864, 24, 14, 2, 151936), True),
    "0.1b": (LlamaConfig, (576, 1536, 30, 9, 3, 49152), True),
}
CONTEXT = 512
POSITIONS = 4096


def config_of(shape: str) -> PreTrainedConfig:
    family, (hidden, inner, layers, heads, kv_heads, vocabulary), tied = SHAPES[shape]
    return family(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=vocabulary,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=tied,
    )


def build(shape: str, level: str, dtype: torch.dtype, device: str) -> LlamaRunner:
    """A runner of this shape at a level; says so if it runs short passes call by call."""
    check_level(level, device, simulate=False)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config_of(shape), dtype=dtype)
    runner = LlamaRunner(model.eval().requires_grad_(False), level, simulate=False)
    slow = runner.record_short_passes() if device != "cpu" else None
    if slow:
        CONSOLE.print(f"{shape} at {level}: {slow}")
    return runner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", choices=SHAPES, required=True)
    parser.add_argument("--draft", choices=SHAPES, required=True)
    parser.add_argument("--levels", default="none")
    parser.add_argument("--k", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    threads = set_threads(None)
    make_ready(options.device)
    dtype = default_dtype(options.device)
    how = {"dtype": dtype, "device": options.device}
    ours = SimpleNamespace(
        target=build(options.target, "none", **how),
        drafts={level: build(options.draft, level, **how) for level in options.levels.split(",")},
    )
    where = options.device if options.device != "cpu" else f"{threads} threads"
    CONSOLE.print(f"{options.target} and {options.draft}: {ours.target.name}, {where}")
    tokens = [(7 * at) % 1000 for at in range(CONTEXT)]
    measure_costs(ours, tokens, options.k).show(CONSOLE)


if __name__ == "__main__":
    try:
        main()
    except DraftbenchError as error:
        sys.exit(f"error: {error}")
