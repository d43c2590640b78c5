"""Times what draftbench is compared with on a card, for `on_a_card.sh`. It appends lines of JSON to
FILE: who, how many rows at once, tokens per second, and who is the same without a draft.

    python scripts/card_peers.py transformers FILE --target DIR --draft DIR --k 3 --rows 1
    VLLM_PYTHON scripts/card_peers.py vllm FILE --target DIR [--draft DIR] --k 3 --rows 1,8,32

Tokens are counted after the first of each answer, as draftbench counts them: what single tokens
take, which is mostly reading prompts, is taken off. It imports neither draftbench nor, for vLLM,
transformers, so that it runs in vLLM's own environment.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

SUITE = Path(__file__).parents[1] / "suites" / "completion.jsonl"
GENERATE, VLLM = "transformers `generate`", "vLLM, plain"


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def texts(count: int) -> list[str]:
    rows = [json.loads(line) for line in SUITE.read_text().splitlines()]
    return [row.get("prompt") or row["messages"][-1]["content"] for row in rows][:count]


def after_the_first(work: Callable[[int], int], tokens: int) -> float:
    """Tokens per second after the first of each answer; `work` writes answers of up to so many
    tokens, and returns how many it wrote. It runs once before.
    """
    work(8)
    found = []
    for limit in (1, tokens):
        begun = time.perf_counter()
        written = work(limit)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        found.append((written, time.perf_counter() - begun))
    (answers, first), (written, seconds) = found
    return (written - answers) / (seconds - first)


def with_transformers(options: argparse.Namespace, say: Callable[..., None]) -> None:
    """Greedy decoding one request at a time, alone and with the draft as its assistant."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.target)
    target, draft = (
        AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).to(device())
        for model in (options.target, options.draft)
    )
    asked = draft.generation_config
    asked.num_assistant_tokens, asked.num_assistant_tokens_schedule = options.k, "constant"
    asked.assistant_confidence_threshold = 0.0
    prompts = [
        tokenizer(text, return_tensors="pt").input_ids.to(device())
        for text in texts(options.requests)
    ]

    def tokens_per_second(**assisted: object) -> float:
        def work(limit: int) -> int:
            written = 0
            for prompt in prompts:
                out = target.generate(
                    prompt,
                    attention_mask=torch.ones_like(prompt),
                    max_new_tokens=limit,
                    do_sample=False,
                    pad_token_id=0,
                    **assisted,
                )
                written += out.shape[1] - prompt.shape[1]
            return written

        return after_the_first(work, options.tokens)

    say(GENERATE, rows=1, tokens_per_second=tokens_per_second())
    name = f"transformers, assisted by {Path(options.draft).name}, k = {options.k}"
    speed = tokens_per_second(assistant_model=draft)
    say(name, rows=1, tokens_per_second=speed, over=GENERATE)


def with_vllm(options: argparse.Namespace, say: Callable[..., None]) -> None:
    """Greedy decoding of as many requests at a time as there are rows."""
    os.environ.update(VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1", DO_NOT_TRACK="1")
    from vllm import LLM, SamplingParams

    rows = [int(count) for count in options.rows.split(",")]
    drafts = {"method": "draft_model", "model": options.draft, "num_speculative_tokens": options.k}
    engine = LLM(
        options.target,
        dtype="bfloat16",
        max_model_len=1024,
        max_num_seqs=max(rows),
        enable_prefix_caching=False,
        enforce_eager=device() == "cpu",
        speculative_config=drafts if options.draft else None,
        **({"gpu_memory_utilization": 0.8} if device() == "cuda" else {}),
    )
    prompts, name, over = texts(max(max(rows), options.requests)), VLLM, {}
    if options.draft:
        name = f"vLLM, drafting with {Path(options.draft).name}, k = {options.k}"
        over = {"over": VLLM}
    for count in rows:
        # As many as fill every batch; one at a time they would take long.
        asked = prompts[: options.requests if count == 1 else len(prompts) // count * count]

        def work(limit: int, asked: list[str] = asked, count: int = count) -> int:
            sampling, written = SamplingParams(temperature=0, max_tokens=limit), 0
            for at in range(0, len(asked), count):
                answers = engine.generate(asked[at : at + count], sampling, use_tqdm=False)
                written += sum(len(answer.outputs[0].token_ids) for answer in answers)
            return written

        speed = after_the_first(work, options.tokens)
        say(name, rows=count, tokens_per_second=speed, **over)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peer", choices=("transformers", "vllm"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft")
    parser.add_argument("--k", type=int, default=3)
    parser.add_argument("--rows", default="1")
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()

    def say(name: str, **figures: object) -> None:
        with options.file.open("a") as file:
            file.write(json.dumps({"name": name, **figures}) + "\n")

    {"transformers": with_transformers, "vllm": with_vllm}[options.peer](options, say)


if __name__ == "__main__":
    main()
