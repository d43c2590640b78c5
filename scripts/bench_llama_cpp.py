"""Times a step without a draft beside llama.cpp, in turns, on the same weights in 16 bits, and
passes over 2 to 9 tokens beside such a step.

    python scripts/bench_llama_cpp.py --target MODEL --gguf MODEL.gguf --llama-bench PATH
    python scripts/bench_llama_cpp.py --target MODEL --gguf MODEL.gguf --llama-bench PATH \\
        --dtype bfloat16 --threads 2

On a CPU with AVX-512 `ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 NUMBA_CPU_NAME=haswell
NUMBA_CPU_FEATURES=+avx2,+fma,+f16c` shows what draftbench would take on one without, and
GGML_BACKEND_PATH=…/libggml-cpu-haswell.so what llama.cpp would.
"""

import argparse
import json
import subprocess
import time
from statistics import median

import torch

from draftbench.decoder.device import set_threads
from draftbench.decoder.sampling import best
from draftbench.models.quantize import Build, build_runner
from draftbench.models.source import ModelSource
from draftbench.sweep.estimates import speed_of

STEPS, PASSES, WIDTHS = 24, 12, range(2, 10)


@torch.inference_mode()
def seconds_of(runner, cache, depth, width, often) -> float:
    """The median of passes over `width` tokens after `depth` ones, each one token further."""
    generator = torch.Generator().manual_seed(width)
    times = []
    for place in range(often):
        cache.rewind(0, depth + place)
        tokens = torch.randint(0, runner.vocab_size, (width,), generator=generator)
        start = time.perf_counter()
        best(runner.forward(tokens, cache, every=True))
        times.append(time.perf_counter() - start)
    return median(times)


def theirs(options, threads) -> float:
    """Seconds of llama.cpp's step at the same depth."""
    command = [options.llama_bench, "-m", options.gguf, "-p", "0", "-n", str(STEPS)]
    command += ["-d", str(options.depth), "-t", str(threads), "-r", "3", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return 1 / json.loads(done.stdout)[0]["avg_ts"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True)
    parser.add_argument("--gguf", required=True, help="the same weights in 16 bits")
    parser.add_argument("--llama-bench", required=True)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--depth", type=int, default=128, help="tokens before the pass")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    threads = set_threads(options.threads)
    build = Build(getattr(torch, options.dtype), "none", "cpu")
    runner, _ = build_runner(ModelSource(options.target), build, None)
    cache = runner.new_cache(options.depth + STEPS + max(WIDTHS) + 1)
    prompt = torch.arange(options.depth) % runner.vocab_size
    runner.forward(prompt, cache, every=False)
    ours, peer = [], []
    for _ in range(options.turns):
        seconds_of(runner, cache, options.depth, 1, 4)
        ours.append(seconds_of(runner, cache, options.depth, 1, STEPS))
        peer.append(theirs(options, threads))
    step = median(ours)
    ratios = sorted(b / a for a, b in zip(ours, peer, strict=True))
    size = sum(getattr(layer, "weight_bytes", 0) for layer in runner.modules())
    read = speed_of("cpu", torch.float32).reading
    print(f"{options.target} {options.dtype}, {threads} threads, depth {options.depth}")
    print(f"  {runner.name}")
    print(f"  step {1e3 * step:.2f} ms, llama.cpp {1e3 * median(peer):.2f} ms")
    print(
        f"  llama.cpp's seconds over ours {median(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}]"
    )
    share = f"{size / step / 1e9:.1f} of {read / 1e9:.1f} GB/s, {size / step / read:.0%}"
    print(f"  weights read at {share}")
    passes = {w: seconds_of(runner, cache, options.depth, w, PASSES) / step for w in WIDTHS}
    print("  v: " + ", ".join(f"{width} {each:.2f}" for width, each in passes.items()))


if __name__ == "__main__":
    main()
