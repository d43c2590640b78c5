"""Shows what verification costs a mixture of experts: v(1) … v(8) as timed, and by bytes of the
experts that passes read, as counted and as many as there are if each token's are independent.

    OMP_NUM_THREADS=1 python scripts/experts_read.py            # random weights, 0.1 GB
    OMP_NUM_THREADS=1 python scripts/experts_read.py ./OLMoE-1B-7B-0924

Fewer are counted than the bound says, since neighbouring tokens share experts, even of random
weights. Timed passes follow the bytes only on a quiet machine.
"""

import argparse
import statistics
import tempfile

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from draftbench.decoder.device import default_dtype
from draftbench.decoder.mixture import counted_experts
from draftbench.decoder.runner import clock_for
from draftbench.drafts.check import check_models
from draftbench.models.check import memory_here
from draftbench.models.quantize import Build, build_runner
from draftbench.models.source import ModelSource

LARGEST, CONTEXT, TURNS = 8, 64, 9


def random_mixture(folder: str) -> str:
    """Three layers of 32 experts, of which each token is sent to 2."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(  # type: ignore[call-arg]  # its annotations leave head_dim out
        vocab_size=1024, hidden_size=1024, moe_intermediate_size=256, num_hidden_layers=3,
        num_experts=32, num_experts_per_tok=2, num_attention_heads=8, num_key_value_heads=2,
        head_dim=64, max_position_embeddings=512, norm_topk_prob=True, tie_word_embeddings=True,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("target", nargs="?", help="a mixture of experts; default: random weights")
    named = parser.parse_args().target
    with tempfile.TemporaryDirectory() as folder:
        source = ModelSource(named or random_mixture(folder))
        dtype = default_dtype("cpu")
        sheet = check_models(source, [], memory_here(), dtype=dtype).target
        runner, facts = build_runner(source, Build(dtype, "none", "cpu"), None)
    mixture = facts.mixture
    assert mixture is not None, "not a mixture of experts"
    clock, cache = clock_for(runner.device), runner.new_cache(CONTEXT + LARGEST)
    seconds: dict[int, list[float]] = {n: [] for n in range(1, LARGEST + 1)}
    experts: dict[int, list[float]] = {n: [] for n in seconds}
    # Sizes are timed in turn, so that drift affects all alike. Each pass follows the reading of
    # another text, which goes through most experts: what a processor's cache holds is no help.
    for _ in range(TURNS):
        for n in seconds:
            text = torch.randint(0, runner.vocab_size, (CONTEXT + n,))
            cache.rewind(0, 0)
            runner.forward(text[:CONTEXT], cache, every=False)
            start = clock.mark()
            runner.forward(text[CONTEXT:], cache, every=True).argmax(-1).tolist()
            seconds[n].append(clock.seconds(start, clock.mark()))
            cache.rewind(0, CONTEXT)
            with counted_experts(runner.modules()) as counts:
                runner.forward(text[CONTEXT:], cache, every=True)
            experts[n].append(statistics.mean(counts))
    step, one = sheet.read_at("none"), statistics.median(seconds[1])
    per_expert = sheet.expert_bytes / mixture.experts
    table = Table("tokens", "v timed", "experts counted", "at most", "v by bytes", "at most")
    for n, timed in seconds.items():
        read = statistics.mean(experts[n]), mixture.most_read(n)
        by_bytes = (1 + (each - mixture.per_token) * per_expert / step for each in read)
        row = (statistics.median(timed) / one, *read, *by_bytes)
        table.add_row(str(n), *(f"{value:.2f}" for value in row))
    console = Console()
    console.print(
        f"{source.name if named else 'random weights'}: {mixture.per_token} of {mixture.experts} "
        f"experts in each of {mixture.layers} layers; a step reads {step / 1e6:.0f} of "
        f"{sheet.weight_bytes['none'] / 1e6:.0f} MB in {one * 1e3:.1f} ms; {runner.name}"
    )
    console.print(table)


if __name__ == "__main__":
    main()
