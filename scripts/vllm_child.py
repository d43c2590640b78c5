"""Runs vLLM behind a pipe, a line of JSON in and one out; `bench_peers.py` starts it with the
Python that has vLLM.

    python scripts/vllm_child.py '{"target": DIR, "draft": DIR or null, "k": 4, "room": 1024}'

Says `{"ready": seconds}` once loaded; then for every `{"prompt": ids, "limit": n}` decodes greedily
and says `{"tokens": ids, "seconds": s}`. vLLM's output goes to stderr.
"""

import json
import os
import sys
import time


def main() -> None:
    # vLLM prints to stdout as well: the protocol keeps a copy of it for itself.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    asked = json.loads(sys.argv[1])
    start = time.perf_counter()
    from vllm import LLM, SamplingParams

    speculation = {
        "method": "draft_model",
        "model": asked["draft"],
        "num_speculative_tokens": asked["k"],
    }
    engine = LLM(
        asked["target"],
        dtype="bfloat16",
        max_model_len=asked["room"],
        max_num_seqs=1,
        enable_prefix_caching=False,
        speculative_config=speculation if asked["draft"] else None,
    )

    def say(message: dict) -> None:
        answers.write(json.dumps(message) + "\n")

    say({"ready": time.perf_counter() - start})
    for line in sys.stdin:
        job = json.loads(line)
        sampling = SamplingParams(temperature=0, max_tokens=job["limit"])
        start = time.perf_counter()
        (output,) = engine.generate({"prompt_token_ids": job["prompt"]}, sampling, use_tqdm=False)
        seconds = time.perf_counter() - start
        say({"tokens": list(output.outputs[0].token_ids), "seconds": seconds})


if __name__ == "__main__":
    main()
