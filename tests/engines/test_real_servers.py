"""Real servers, started, asked and ended; last run with vLLM 0.32.0 and llama-server b11669.

    DRAFTBENCH_VLLM_PYTHON=vllm/bin/python DRAFTBENCH_LLAMA_SERVER=llama/llama-server \\
        pytest -m slow tests/engines/test_real_servers.py
"""

import json
import os
import urllib.request
from importlib.resources import files
from pathlib import Path

import psutil
import pytest
import torch

from draftbench.engines.commands import ServerStart, speculation
from draftbench.engines.start import started
from draftbench.models.quantize import Build, build_runner
from draftbench.models.source import ModelSource
from draftbench.records import NEAR_TIE_MARGIN

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    from embedded_gguf import write_family

VLLM, LLAMA = (os.environ.get(f"DRAFTBENCH_{n}") for n in ("VLLM_PYTHON", "LLAMA_SERVER"))
EMBEDDED = Path(str(files("draftbench") / "embedded"))
TEXTS = (
    "import os\n\ndef main(argv):\n    ",
    'class Reader:\n    """Reads lines."""\n',
    "héllo wörld — 12345 ÷ 7\t\n\n   don't",
)
LIMIT = 48

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def target():
    source = ModelSource(str(EMBEDDED / "target"))
    return source, build_runner(source, Build(torch.float32, "none", "cpu"), None)[0]


def asked(server, route, **body):
    request = urllib.request.Request(
        server.url + route, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def is_greedy(runner, prompt, tokens):
    """Whether every token is the built-in decoder's best there, near ties apart."""
    ids = torch.tensor([*prompt, *tokens])
    logits = runner.forward(ids[:-1], runner.new_cache(len(ids)), every=True)[-len(tokens) :]
    best = logits.max(dim=-1).values
    chosen = logits.gather(-1, torch.tensor(tokens)[:, None])[:, 0]
    return bool((best - chosen < NEAR_TIE_MARGIN["float32"]).all())


def of_group(server):
    """The processes of a server by its port, which stands on their command line."""
    port = server.url.rpartition(":")[2]
    return [p for p in psutil.process_iter(["cmdline"]) if port in (p.info["cmdline"] or [])]


@pytest.mark.skipif(LLAMA is None, reason="DRAFTBENCH_LLAMA_SERVER names no llama-server")
@pytest.mark.parametrize("draft", [None, "distilled", "ngram"])
def test_llama_server_writes_the_built_in_decoders_tokens(tmp_path, target, draft):
    source, runner = target
    write_family(tmp_path)
    name = f"{tmp_path}/{draft}.gguf" if draft == "distilled" else draft
    drafts = draft and speculation(name, 4, lookup=(4, 2))
    start = ServerStart(
        *("llama.cpp", f"{tmp_path}/target.gguf", drafts),
        command=LLAMA,
        context_length=512,
        concurrency=2,
        threads=1,
    )
    with started(start, tmp_path) as server:
        drafted = 0
        for text in TEXTS:
            prompt = source.tokenizer(text)["input_ids"]
            assert asked(server, "/tokenize", content=text)["tokens"] == prompt
            settings = {"n_predict": LIMIT, "temperature": 0, "return_tokens": True}
            answer = asked(server, "/completion", prompt=prompt, **settings)
            assert is_greedy(runner, prompt, answer["tokens"])
            assert answer["timings"]["cache_n"] == 0
            drafted += answer["timings"].get("draft_n", 0)
        assert (drafted > 0) == (draft is not None)
        processes = of_group(server)
    assert processes
    assert not any(process.is_running() for process in processes)


@pytest.mark.skipif(VLLM is None, reason="DRAFTBENCH_VLLM_PYTHON names no vLLM")
def test_vllm_writes_the_built_in_decoders_tokens_and_tells_its_rounds(
    tmp_path, target, monkeypatch
):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    source, runner = target
    start = ServerStart(
        *("vllm", str(EMBEDDED / "target"), speculation(str(EMBEDDED / "distilled"), 4)),
        args="--dtype float32 --enforce-eager",
        command=f"{VLLM} -m vllm.entrypoints.openai.api_server",
        context_length=512,
        threads=1,
    )
    with started(start, tmp_path) as server:
        for text in TEXTS:
            prompt = source.tokenizer(text)["input_ids"]
            settings = {"max_tokens": LIMIT, "temperature": 0, "return_token_ids": True}
            answer = asked(server, "/v1/completions", model=start.target, prompt=prompt, **settings)
            assert is_greedy(runner, prompt, answer["choices"][0]["token_ids"])
            rounds = answer["metrics"]["speculative_decoding"]
            assert set(rounds["per_step_drafted"]) <= {1, 2, 3, 4}
            assert len(rounds["per_step_accepted"]) == rounds["num_spec_steps"]
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        processes = [
            one for top in of_group(server) for one in (top, *top.children(recursive=True))
        ]
    assert len(processes) > 2  # the engine and its worker are processes of their own
    assert not any(process.is_running() for process in processes)
