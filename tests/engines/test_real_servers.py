"""Real servers, started, asked and ended; last run with vLLM 0.32.0 and llama-server b11669.

    DRAFTBENCH_VLLM_PYTHON=vllm/bin/python DRAFTBENCH_LLAMA_SERVER=llama/llama-server \\
        pytest -m slow tests/engines/test_real_servers.py
"""

import os
from functools import cache
from pathlib import Path

import psutil
import pytest
import torch
from engines.replayed_head import EMBEDDED, ReplayedHead
from engines.stepped_draft import SteppedDraft, before

from draftbench.drafts.speculation import speculation_of
from draftbench.engines.connect import connect
from draftbench.engines.drive import drive
from draftbench.engines.engine import ServerStart
from draftbench.engines.faults import Fault
from draftbench.engines.server import Ask
from draftbench.engines.start import started
from draftbench.engines.vllm import VllmServer
from draftbench.models.quantize import Build, build_runner
from draftbench.models.source import ModelSource
from draftbench.records import NEAR_TIE_MARGIN, NGramSizes, RoundCounts, Sampling, StopRule

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    from block_kin import KIN, make
    from embedded_gguf import write_block, write_family

VLLM, LLAMA = (os.environ.get(f"DRAFTBENCH_{n}") for n in ("VLLM_PYTHON", "LLAMA_SERVER"))
TEXTS = (
    "import os\n\ndef main(argv):\n    ",
    'class Reader:\n    """Reads lines."""\n',
    "héllo wörld — 12345 ÷ 7\t\n\n   don't",
)
# The embedded target ends a few tokens after this.
ENDING = "    args = parser.parse_args()\n    main(args)\n\n\nif __name__ == '__main__':\n"
BLOCKS = [kin for kin in KIN if kin != "dflash-alike"]
# llama-server stops no DSpark drafter that does not say how sure it is, and serves without it.
STOPPED = [kin for kin in BLOCKS if kin != "dspark-unsure"]
IN_FLOAT32 = "-ctk f32 -ctv f32 -ctkd f32 -ctvd f32 -fa off"

pytestmark = pytest.mark.slow
needs_llama = pytest.mark.skipif(
    LLAMA is None, reason="DRAFTBENCH_LLAMA_SERVER names no llama-server"
)
needs_vllm = pytest.mark.skipif(VLLM is None, reason="DRAFTBENCH_VLLM_PYTHON names no vLLM")


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """llama(drafts) is how to start it with the embedded models; `drafts` is a draft's name. With a
    rule, or `exactly`, it computes in float32 throughout, as the built-in decoder does.
    """
    folder = tmp_path_factory.mktemp("gguf")
    write_family(folder)

    def start(drafts=None, k=4, stop=None, *, concurrency=2, exactly=False):
        files = {"distilled": "{}/distilled.gguf", "head": "eagle3:{}/head.gguf"}
        if drafts in KIN:
            kind = drafts[:6]
            write_block(
                folder / f"{drafts}.gguf", make(folder / drafts, drafts), EMBEDDED / "target"
            )
            files[drafts] = f"{kind}:{{}}/{drafts}.gguf"
        name = files.get(drafts, "ngram").format(folder)
        return ServerStart(
            *("llama.cpp", f"{folder}/target.gguf"),
            drafts and speculation_of(name, k, lookup=NGramSizes(4, 2), stop=stop),
            args=IN_FLOAT32 if stop or exactly else "",
            command=LLAMA,
            context_length=512,
            concurrency=concurrency,
            threads=1,
        )

    return start


@pytest.fixture
def vllm(monkeypatch):
    """vllm(draft) is how to start it with the embedded target."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    return lambda draft, k=4: ServerStart(
        *("vllm", str(EMBEDDED / "target"), speculation_of(draft, k)),
        args="--dtype float32 --enforce-eager",
        command=f"{VLLM} -m vllm.entrypoints.openai.api_server",
        context_length=512,
        threads=1,
    )


@pytest.fixture(scope="module")
def block_of(tmp_path_factory):
    """block_of(name) is the replay of a relative of the embedded DFlash drafter."""
    folder = tmp_path_factory.mktemp("blocks")
    return cache(lambda kin: ReplayedHead(kin[:6], make(folder / kin, kin)))


@pytest.fixture(scope="module")
def stepped():
    return SteppedDraft("distilled", 6)


def driven(start, folder, texts=TEXTS, limit=48, concurrency=1):
    """The answers of one server, its facts and what it counted; all its processes have ended."""
    with started(start, folder) as running:
        server, port = connect(running.url), running.url.rpartition(":")[2]
        prompts = [server.tokenize(text) for text in texts]
        server.echo(prompts)
        before = server.counters()
        asks = [Ask((str(n), 0), ids, limit, Sampling(seed=1)) for n, ids in enumerate(prompts)]
        answers = list(drive(server, asks, concurrency=concurrency))
        counted, facts = server.counters().since(before), server.facts()
        named = psutil.process_iter(["cmdline"])
        group = [p for p in named if port in (p.info["cmdline"] or [])]
        group += [child for process in group for child in process.children(recursive=True)]
    assert group
    assert not any(process.is_running() for process in group)
    (gone,) = drive(server, asks[:1], concurrency=1)
    server.close()
    assert gone.error is Fault.UNREACHABLE
    assert {answer.error for answer in answers} == {None}
    return answers, facts, counted


@pytest.fixture(scope="module")
def is_greedy():
    """Whether every token of an answer to a text is the built-in decoder's best there, near ties
    apart, and its prompt what the target's tokenizer makes of the text.
    """
    source = ModelSource(str(EMBEDDED / "target"))
    runner = build_runner(source, Build(torch.float32, "none", "cpu"), None)[0]

    def checked(text, answer):
        ids = torch.tensor([*answer.ask.prompt, *answer.tokens])
        length = len(answer.tokens)
        logits = runner.forward(ids[:-1], runner.new_cache(len(ids)), every=True)[-length:]
        chosen = logits.gather(-1, ids[-length:, None])[:, 0]
        close = logits.max(dim=-1).values - chosen < NEAR_TIE_MARGIN["float32"]
        return bool(close.all()) and answer.ask.prompt == source.tokenizer(text)["input_ids"]

    return checked


@needs_llama
@pytest.mark.parametrize(
    ("draft", "method"),
    [(None, "none"), ("distilled", "draft-simple"), ("ngram", "ngram-simple")],
)
def test_llama_server_writes_the_built_in_decoders_tokens_and_tells_its_rounds(
    tmp_path, is_greedy, llama, draft, method
):
    answers, facts, counted = driven(llama(draft), tmp_path)
    assert (facts.engine, facts.method) == ("llama.cpp", method)
    assert facts.k == (4 if draft == "distilled" else facts.k)
    for text, answer in zip(TEXTS, answers, strict=True):
        assert is_greedy(text, answer)
        assert answer.cached_tokens == 0
        assert answer.output_tokens == len(answer.tokens)
        if draft == "distilled":
            counts = answer.counts
            assert sum(counts.by_position) == counts.accepted
            # A last token alone is not drafted for, and is no round.
            assert -1 <= 1 + counts.rounds + counts.accepted - answer.output_tokens <= 4
    told = [answer.counts for answer in answers if answer.counts]
    assert bool(told) == (draft is not None)
    assert (counted.accepted or 0) == sum(counts.accepted for counts in told)
    assert (counted.drafted or 0) == sum(counts.drafted for counts in told)


@needs_llama
def test_llama_server_accepts_of_a_heads_drafts_what_its_replay_says(tmp_path, llama):
    head, (answers, facts, _) = ReplayedHead(), driven(llama("head"), tmp_path)
    assert (facts.method, facts.k) == ("draft-eagle3", 4)
    for answer in answers:
        assert head.sums(answer, 4) == (answer.counts.drafted, answer.counts.accepted)


@needs_llama
@pytest.mark.parametrize("threshold", [0.3, 0.6, 0.9])
def test_llama_server_stops_before_a_token_of_which_the_draft_is_unsure(
    tmp_path, llama, stepped, threshold
):
    """Its counters leave the unsure token out, and rounds that propose nothing."""
    stop = StopRule(kind="before", threshold=threshold)
    answers, facts, _ = driven(llama("distilled", 6, stop), tmp_path, (*TEXTS, ENDING), limit=120)
    assert facts.k == 6
    for answer in answers:
        begin, text = len(answer.ask.prompt) + 1, (*answer.ask.prompt, *answer.tokens)
        end = begin - 1 + answer.ask.limit
        rounds = list(stepped.rounds(text, begin, end, before(threshold)))
        proposed, accepted, _ = map(sum, zip(*rounds, strict=True))
        # An end token that is accepted before the last one proposed is not counted.
        some, right, written = rounds[-1]
        accepted -= right == written and right < some
        counted = answer.counts
        assert (counted.drafted, counted.accepted) == (proposed, accepted)
        assert counted.rounds == sum(some > 0 for some, _, _ in rounds)
    assert {answer.finish for answer in answers} == {"stop", "length"}


@needs_llama
@pytest.mark.parametrize("threshold", [0.3, 0.6, 0.9])
def test_llama_server_stops_a_head_where_the_built_in_decoder_does(tmp_path, llama, threshold):
    stop, head = StopRule(kind="before", threshold=threshold), ReplayedHead()
    answers, _, _ = driven(llama("head", 6, stop), tmp_path)
    for answer in answers:
        proposed, accepted = head.decoded(answer, 6, stop)
        # An answer in which nothing is proposed has no counts.
        counts = answer.counts or RoundCounts(rounds=0, drafted=0, accepted=0)
        assert (counts.drafted, counts.accepted) == (sum(proposed), sum(accepted))
        assert counts.rounds == sum(some > 0 for some in proposed)


@needs_llama
@pytest.mark.parametrize("k", [1, 3, 6])
@pytest.mark.parametrize("kin", BLOCKS)
def test_llama_server_accepts_of_a_blocks_drafts_what_its_replay_says(
    tmp_path, llama, block_of, kin, k
):
    """Of each number of drafted tokens, whose blocks differ."""
    answers, facts, _ = driven(llama(kin, k, exactly=True), tmp_path)
    assert (facts.method, facts.k) == (f"draft-{kin[:6]}", k)
    for answer in answers:
        assert block_of(kin).sums(answer, k) == (answer.counts.drafted, answer.counts.accepted)


@needs_llama
@pytest.mark.parametrize("draft", ["head", "dflash", "dspark"])
def test_llama_server_accepts_of_drafts_the_same_beside_other_requests(
    tmp_path, llama, block_of, draft
):
    start = llama(draft, 5, concurrency=4, exactly=True)
    answers, _, _ = driven(start, tmp_path, (*TEXTS, "def read(path):\n    "), concurrency=4)
    replayed = ReplayedHead() if draft == "head" else block_of(draft)
    for answer in answers:
        assert replayed.sums(answer, 5) == (answer.counts.drafted, answer.counts.accepted)


@needs_llama
@pytest.mark.parametrize("threshold", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("kin", STOPPED)
def test_llama_server_stops_a_block_where_the_built_in_decoder_does(
    tmp_path, llama, block_of, kin, threshold
):
    """It drafts the whole block, and proposes what comes before the unsure token."""
    stop = StopRule(kind="before", threshold=threshold)
    answers, _, _ = driven(llama(kin, 6, stop), tmp_path)
    for answer in answers:
        proposed, accepted = block_of(kin).decoded(answer, 6, stop)
        counts = answer.counts or RoundCounts(rounds=0, drafted=0, accepted=0)
        assert (counts.drafted, counts.accepted) == (sum(proposed), sum(accepted))
        assert counts.rounds == sum(some > 0 for some in proposed)


@needs_vllm
def test_vllm_accepts_of_a_heads_drafts_what_its_replay_says(tmp_path, vllm):
    head, (answers, _, _) = ReplayedHead(), driven(vllm(f"eagle3:{EMBEDDED}/head"), tmp_path)
    assert sum(head.check_rounds(answer, 4) for answer in answers) > 10


@needs_vllm
@pytest.mark.parametrize("k", [1, 3, 5])
def test_vllm_accepts_of_a_blocks_drafts_what_its_replay_says(tmp_path, vllm, k):
    """Its CPU build norms the text's keys in every layer by the first layer's weights, so these are
    alike here.
    """
    head = ReplayedHead("dflash", folder := make(tmp_path / "block", "dflash-alike"))
    answers, facts, _ = driven(vllm(f"dflash:{folder}", k), tmp_path)
    assert (facts.method, facts.k) in ((None, k), ("dflash", k))
    assert sum(head.check_rounds(answer, k) for answer in answers) > 10


@needs_vllm
def test_vllm_writes_the_built_in_decoders_tokens_and_its_counters_are_the_rounds_it_tells(
    tmp_path, is_greedy, vllm, monkeypatch
):
    """So the rounds of a version that tells none are read from its counters."""
    pairs, rounds_of = [], VllmServer.rounds_of
    monkeypatch.setattr(VllmServer, "counts_around", True)
    monkeypatch.setattr(
        VllmServer, "rounds_of", lambda own, *of: pairs.append(of) or rounds_of(own, *of)
    )
    answers, _, _ = driven(vllm(str(EMBEDDED / "distilled")), tmp_path)
    assert all(is_greedy(text, answer) for text, answer in zip(TEXTS, answers, strict=True))
    assert len(pairs) >= len(TEXTS)
    for answer, around in pairs[: len(TEXTS)]:
        told, answer.counts = answer.counts, None
        assert (around.rounds, around.drafted) == (told.rounds, told.drafted)
        assert (around.accepted, around.by_position) == (told.accepted, told.by_position)
        assert {drafted for drafted, _ in told.by_round} <= {1, 2, 3, 4}
        assert rounds_of(None, answer, around) == around
        assert answer.cached_tokens == 0


@needs_llama
@pytest.mark.parametrize("drafts", [None, "distilled"])
def test_llama_servers_counters_show_another_user(llama, tmp_path, drafts):
    """Whose request comes and goes while the second of three is answered, and no other."""
    with started(llama(drafts), tmp_path) as running:
        server, other = (connect(running.url, "llama.cpp") for _ in range(2))
        prompt = server.tokenize(TEXTS[0])
        asks = [Ask((f"r{n}", 0), prompt, 48, Sampling(seed=n)) for n in range(3)]
        alone = list(drive(server, asks, concurrency=1))
        assert [answer.shared for answer in alone] == [False] * 3
        answers = drive(server, asks, concurrency=1)
        shared = [next(answers).shared]
        (beside,) = drive(other, [Ask(("other", 0), prompt, 24, Sampling())], concurrency=1)
        shared += [answer.shared for answer in answers]
        assert beside.error is None
        assert sum(shared) >= 1
        for each in (server, other):
            each.close()
