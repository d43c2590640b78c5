"""Real servers, started, asked and ended; last run with vLLM 0.32.0 and llama-server b11669.

    DRAFTBENCH_VLLM_PYTHON=vllm/bin/python DRAFTBENCH_LLAMA_SERVER=llama/llama-server \\
        pytest -m slow tests/engines/test_real_servers.py
"""

import json
import os
import urllib.request
from pathlib import Path

import psutil
import pytest
import torch
from engines.replayed_head import EMBEDDED, ReplayedHead

from draftbench.engines.client import Fault
from draftbench.engines.connect import connect
from draftbench.engines.counters import since
from draftbench.engines.drive import drive
from draftbench.engines.engine import Ask, ServerStart
from draftbench.engines.start import started
from draftbench.engines.vllm import Vllm
from draftbench.models.drafting import speculation_of
from draftbench.models.quantize import Build, build_runner
from draftbench.models.source import ModelSource
from draftbench.records import NEAR_TIE_MARGIN, NGramSizes, Sampling

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    from embedded_gguf import write_family

VLLM, LLAMA = (os.environ.get(f"DRAFTBENCH_{n}") for n in ("VLLM_PYTHON", "LLAMA_SERVER"))
TEXTS = (
    "import os\n\ndef main(argv):\n    ",
    'class Reader:\n    """Reads lines."""\n',
    "héllo wörld — 12345 ÷ 7\t\n\n   don't",
)
LIMIT = 48

pytestmark = pytest.mark.slow
needs_llama = pytest.mark.skipif(
    LLAMA is None, reason="DRAFTBENCH_LLAMA_SERVER names no llama-server"
)
needs_vllm = pytest.mark.skipif(VLLM is None, reason="DRAFTBENCH_VLLM_PYTHON names no vLLM")


@pytest.fixture(scope="module")
def target():
    source = ModelSource(str(EMBEDDED / "target"))
    return source, build_runner(source, Build(torch.float32, "none", "cpu"), None)[0]


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """llama(drafts) is how to start it with the embedded models; `drafts` is a draft's name."""
    folder = tmp_path_factory.mktemp("gguf")
    write_family(folder)

    def start(drafts=None):
        files = {"distilled": "{}/distilled.gguf", "head": "eagle3:{}/head.gguf"}
        name = files.get(drafts, "ngram").format(folder)
        return ServerStart(
            *("llama.cpp", f"{folder}/target.gguf"),
            drafts and speculation_of(name, 4, lookup=NGramSizes(4, 2)),
            command=LLAMA,
            context_length=512,
            concurrency=2,
            threads=1,
        )

    return start


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


@needs_llama
@pytest.mark.parametrize("draft", [None, "distilled", "ngram"])
def test_llama_server_writes_the_built_in_decoders_tokens(tmp_path, target, llama, draft):
    source, runner = target
    with started(llama(draft), tmp_path) as server:
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


def driven(start, folder):
    """The answers of one server, its facts and what it counted."""
    with started(start, folder) as running:
        server = connect(running.url)
        prompts = [server.tokenize(text) for text in TEXTS[:2]]
        server.echo(prompts)
        before = server.counters()
        asks = [Ask((str(n), 0), ids, 24, Sampling(seed=1)) for n, ids in enumerate(prompts)]
        answers = list(drive(server, asks, concurrency=1))
        counted, facts = since(before, server.counters()), server.facts()
        server.close()
    return answers, facts, counted


@needs_llama
def test_llama_server_tells_the_rounds_of_what_it_wrote(tmp_path, llama):
    plain, facts, _ = driven(llama(), tmp_path)
    assert (facts.engine, facts.method, facts.k) == ("llama.cpp", "none", 0)
    fast, facts, counted = driven(llama("distilled"), tmp_path)
    assert (facts.method, facts.k) == ("draft-simple", 4)
    for one, other in zip(plain, fast, strict=True):
        assert one.error is other.error is None
        assert one.output_tokens == len(one.tokens) == len(other.tokens)
        assert one.tokens == other.tokens  # float32, temperature 0
        assert one.counts is None
        counts = other.counts
        assert sum(counts.by_position) == counts.accepted
        # A last token alone is not drafted for, and is no round.
        assert -1 <= 1 + counts.rounds + counts.accepted - other.output_tokens <= 4
    assert counted.accepted == sum(answer.counts.accepted for answer in fast)
    assert counted.drafted == sum(answer.counts.drafted for answer in fast)


@needs_llama
def test_llama_server_accepts_of_a_heads_drafts_what_its_replay_says(tmp_path, llama):
    head, (answers, facts, _) = ReplayedHead(), driven(llama("head"), tmp_path)
    assert (facts.method, facts.k) == ("draft-eagle3", 4)
    for answer in answers:
        assert head.sums(answer, 4) == (answer.counts.drafted, answer.counts.accepted)


@needs_llama
def test_a_llama_server_that_ended_is_unreachable(tmp_path, llama):
    with started(llama(), tmp_path) as running:
        server = connect(running.url)
        ids = server.tokenize(TEXTS[0])
    (answer,) = drive(server, [Ask(("r", 0), ids, 4, Sampling())], concurrency=1)
    server.close()
    assert answer.error is Fault.UNREACHABLE


@pytest.fixture
def vllm(monkeypatch):
    """vllm(draft) is how to start it with the embedded target."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    return lambda draft: ServerStart(
        *("vllm", str(EMBEDDED / "target"), speculation_of(draft, 4)),
        args="--dtype float32 --enforce-eager",
        command=f"{VLLM} -m vllm.entrypoints.openai.api_server",
        context_length=512,
        threads=1,
    )


@needs_vllm
def test_vllm_accepts_of_a_heads_drafts_what_its_replay_says(tmp_path, vllm):
    head, (answers, _, _) = ReplayedHead(), driven(vllm(f"eagle3:{EMBEDDED}/head"), tmp_path)
    assert sum(head.check_rounds(answer, 4) for answer in answers) > 10


@needs_vllm
def test_vllms_counters_around_an_answer_are_the_rounds_that_it_tells(tmp_path, vllm, monkeypatch):
    """So those of a version that tells none are read from there."""
    pairs, counted = [], Vllm.counted
    monkeypatch.setattr(Vllm, "counts_around", True)
    monkeypatch.setattr(
        Vllm, "counted", lambda server, *of: pairs.append(of) or counted(server, *of)
    )
    driven(vllm(str(EMBEDDED / "distilled")), tmp_path)
    assert len(pairs) == 2
    for answer, around in pairs:
        told = answer.counts
        assert (around.rounds, around.drafted) == (told.rounds, told.drafted)
        assert (around.accepted, around.by_position) == (told.accepted, told.by_position)
        answer.counts = None
        assert counted(None, answer, around) == around


@needs_vllm
def test_vllm_writes_the_built_in_decoders_tokens_and_tells_its_rounds(tmp_path, target, vllm):
    source, runner = target
    start = vllm(str(EMBEDDED / "distilled"))
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
