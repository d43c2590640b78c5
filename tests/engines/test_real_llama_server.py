"""A real llama-server with the embedded models, started and driven:

DRAFTBENCH_LLAMA_SERVER=llama/llama-server pytest tests/engines/test_real_llama_server.py
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from draftbench.engines.client import Fault
from draftbench.engines.commands import ServerStart, Speculation
from draftbench.engines.connect import connect
from draftbench.engines.drive import drive
from draftbench.engines.engine import Ask
from draftbench.engines.start import started
from draftbench.records import Sampling

ROOT = Path(__file__).parents[2]
LLAMA = os.environ.get("DRAFTBENCH_LLAMA_SERVER")
pytestmark = [
    pytest.mark.skipif(LLAMA is None, reason="DRAFTBENCH_LLAMA_SERVER names no llama-server"),
    pytest.mark.slow,
]
TEXTS = ("import os\n\ndef main(argv):\n", "class Node:\n    def __init__(self", "def add(a, b):\n")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gguf")
    script = ROOT / "scripts" / "embedded_gguf.py"
    subprocess.run([sys.executable, script, folder], check=True, capture_output=True)
    return folder


def served(models, folder, speculation=None, limit=24):
    """The answers of one server, its facts and what it counted."""
    start = ServerStart(
        engine="llama.cpp",
        target=str(models / "target.gguf"),
        speculation=speculation,
        command=f"{LLAMA} {{args}}",
        context_length=512,
        threads=1,
        ready_timeout=60.0,
    )
    with started(start, folder) as running:
        server = connect(running.url)
        prompts = [server.tokenize(text) for text in TEXTS]
        server.echo(prompts)
        asks = [
            Ask((text, 0), ids, limit, Sampling(seed=1))
            for text, ids in zip(TEXTS, prompts, strict=True)
        ]
        before = server.counters()
        answers = list(drive(server, asks, concurrency=1))
        counted, facts = server.counters().since(before), server.facts()
        server.close()
    return answers, facts, counted


def test_a_real_llama_server_tells_the_rounds_of_what_it_wrote(models, tmp_path):
    plain, facts, _ = served(models, tmp_path)
    assert (facts.engine, facts.method, facts.k) == ("llama.cpp", "none", 0)
    drafting = Speculation("draft-model", str(models / "distilled.gguf"), 4)
    fast, facts, counted = served(models, tmp_path, drafting)
    assert (facts.method, facts.k) == ("draft-simple", 4)
    for one, other in zip(plain, fast, strict=True):
        assert one.error is other.error is None
        assert one.output_tokens == len(one.tokens) == len(other.tokens)
        assert one.tokens == other.tokens  # float32, temperature 0
        assert one.rounds is None
        assert sum(other.by_position) == other.kept
        # A last token alone is not drafted for, and is no round.
        assert -1 <= 1 + other.rounds + other.kept - other.output_tokens <= 4
    assert counted.kept == sum(answer.kept for answer in fast)
    assert counted.drafted == sum(answer.drafted for answer in fast)


def test_a_real_server_that_ended_is_unreachable(models, tmp_path):
    start = ServerStart(
        "llama.cpp", str(models / "target.gguf"), command=f"{LLAMA} {{args}}", threads=1
    )
    with started(start, tmp_path) as running:
        server = connect(running.url)
        ids = server.tokenize(TEXTS[0])
    (answer,) = drive(server, [Ask(("r", 0), ids, 4, Sampling())], concurrency=1)
    server.close()
    assert answer.error is Fault.UNREACHABLE
