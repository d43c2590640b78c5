"""The peers that `bench_decode.py` times draftbench against: transformers in this process, vLLM in
a child that sleeps while others are timed.
"""

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from ctypes.util import find_library
from pathlib import Path

import torch
from transformers import GenerationConfig
from transformers.generation import BaseStreamer
from transformers.generation.candidate_generator import AssistantVocabTranslatorCache

LOADING_LIMIT, REQUEST_LIMIT = 300.0, 120.0


class Transformers:
    """Plain and assisted generation of the library, on weights as it loads them: constant draft
    length, no confidence threshold. `draft` None is the target's own layers, which draft a token
    each; `tokenizers` are those of both where a draft has another vocabulary, and then `generate`
    assists by the tokens of both (USD), which it only does where it draws.
    """

    def __init__(self, target, draft, ends, k, tokenizers=None):
        self.target, self.ends = target, sorted(ends)
        self.extra, self.draws = {"use_mtp": True}, {}
        if draft is None:
            return
        self.extra = {"assistant_model": draft}
        if tokenizers is not None:
            self.extra |= zip(("tokenizer", "assistant_tokenizer"), tokenizers, strict=True)
            self.draws = {"do_sample": True, "top_k": 1}
            # Made here, it leaves the draft's output layer as it is; pruning that fails in 5.24.
            ours, other = tokenizers
            self._words = AssistantVocabTranslatorCache.get_translator(
                ours, other, target.config.vocab_size
            )
        config = draft.generation_config
        config.num_assistant_tokens, config.num_assistant_tokens_schedule = k, "constant"
        config.assistant_confidence_threshold = 0.0

    def run(self, prompt, limit, *, assisted):
        """Output ids, seconds, and those of them until the first token came: not known of assisted
        generation, which hands over whole rounds.
        """
        # A new configuration: a checkpoint's own may ask for sampling or a repetition penalty.
        ends = {"eos_token_id": self.ends, "pad_token_id": self.ends[0]}
        how = {"do_sample": False} | (self.draws if assisted else {})
        config = GenerationConfig(max_new_tokens=limit, **ends, **how)
        extra = self.extra if assisted else {}
        ids = torch.tensor([prompt])
        watch = _FirstToken()
        start = time.perf_counter()
        out = self.target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=config,
            streamer=watch,
            **extra,
        )
        seconds = time.perf_counter() - start
        first = None if assisted else watch.seen[1] - start
        return out[0, len(prompt) :].tolist(), seconds, first


class _FirstToken(BaseStreamer):
    """When the prompt, the first tokens and all others were handed over."""

    def __init__(self):
        self.seen = []

    def put(self, value):
        self.seen.append(time.perf_counter())

    def end(self):
        pass


class PeerError(Exception):
    """vLLM did not start, or did not answer."""


class Vllm:
    """vLLM in a separate process group, stopped (SIGSTOP) except while it is asked, so that its
    workers and its polling scheduler take no time from what else is timed.
    """

    def __init__(self, python, target, draft, k, room, threads):
        options = {"target": target, "draft": draft, "k": k, "room": room}
        self._folder = tempfile.TemporaryDirectory()
        self._log = Path(self._folder.name) / "log"
        with self._log.open("w") as log:
            self._child = subprocess.Popen(
                [python, str(Path(__file__).with_name("vllm_child.py")), json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(python, threads),
                start_new_session=True,
            )
        try:
            self.loading = self._answer(LOADING_LIMIT)["ready"]
        except BaseException:  # interrupted, too: it must not go on by itself
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    def run(self, prompt, limit):
        """Output ids and seconds as the child measured them; the time of the first is unknown."""
        self._signal(signal.SIGCONT)
        job = json.dumps({"prompt": prompt, "limit": limit}) + "\n"
        self._child.stdin.write(job.encode())
        self._child.stdin.flush()
        answer = self._answer(REQUEST_LIMIT)
        self._signal(signal.SIGSTOP)
        return answer["tokens"], answer["seconds"], None

    def close(self):
        """End the child and its workers."""
        self._signal(signal.SIGKILL)
        self._child.wait()
        self._folder.cleanup()

    def _answer(self, limit):
        """The next line of the child, which is written whole."""
        ready, _, _ = select.select([self._child.stdout], [], [], limit)
        line = self._child.stdout.readline() if ready else b""
        if not line:
            said = [line for line in self._log.read_text().splitlines() if line.strip()]
            said = [line for line in said if "Error" in line] or said or ["no message"]
            why = f"no answer within {limit:.0f} s" if not ready else "it ended"
            raise PeerError(f"{why}; its log ends: {said[-1][-300:]}")
        return json.loads(line)

    def _signal(self, number):
        with suppress(ProcessLookupError):  # it ended by itself
            os.killpg(self._child.pid, number)


def _environment(python, threads):
    """As many threads as the others have, one on each core, and the OpenMP library that vLLM asks
    for; the caller's settings are kept.
    """
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads]))
    wanted = {
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": cores,
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "OMP_NUM_THREADS": str(threads),
    }
    openmp = Path(python).parent.parent / "lib" / "libiomp5.so"
    memory = find_library("tcmalloc_minimal")
    preload = [str(openmp)] if openmp.exists() else []
    preload += [memory] if memory else []
    if preload:
        wanted["LD_PRELOAD"] = ":".join(preload)
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "OMP_NUM_THREADS")}
    return {**wanted, **kept, "OMP_NUM_THREADS": str(threads)}
