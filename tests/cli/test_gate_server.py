"""What a running server accepts, judged against a baseline of the same server."""

from functools import cache

import pytest
from engines.scripted_server import ScriptedServer
from scenes import FEW

TRAFFIC = ["--traffic", FEW, "--sample", 12, "--temperature", 0]
TRAFFIC += ["--max-new-tokens", 24]


@pytest.fixture(scope="module")
def measured(once, tmp_path_factory):
    """A run of a server that accepts 3, 2, 3, 2, … of 4 tokens, or as told, with a server without
    speculation beside it or alone; `when` tells apart two runs of the same server.
    """

    @cache
    def run(when="before", *, k=4, accepts=(3, 2), pair=False, load="1", faults=(), **how):
        folder = tmp_path_factory.mktemp(when) / "run"
        busy = dict.fromkeys(faults, "busy")
        drafting = ScriptedServer("vllm", k=k, accepts=accepts, faults=busy, **how)
        with ScriptedServer("vllm") as plain, drafting as server:
            words = ["--server", server.url, *TRAFFIC, "--concurrency", load, "--out", folder]
            outcome = once("sweep", *words, *["--baseline-server", plain.url] * pair)
        assert outcome.code == bool(faults), outcome.err
        return folder

    return run


@pytest.fixture
def save(command, measured, tmp_path):
    """A baseline of such a run."""

    def saved(**server):
        file, chosen = tmp_path / "baseline.json", ["--candidate", "draft", "--k", 4]
        assert command("gate", "--save", file, measured(**server), *chosen).code == 0
        return file

    return saved


@pytest.fixture
def gated(command, measured):
    """A second run is judged."""

    def judged(saved, *limits, **server):
        return command("gate", "--baseline", saved, measured("after", **server), *limits)

    return judged


@pytest.mark.parametrize(("accepts", "code", "verdict"), [((3, 2), 0, "PASS"), ((1, 0), 1, "FAIL")])
def test_the_verdict_is_on_what_the_server_accepts(save, gated, accepts, code, verdict):
    """17 of 23 tried tokens before; at worst .5 of 1.5 in a round, of which half accept one."""
    outcome = gated(save(), "--max-drop", "alpha:0.05", accepts=accepts)
    assert outcome.code == code, outcome.err
    assert outcome.out.startswith(verdict)
    said = " ".join(outcome.out.split())
    assert ("alpha 0.739 0.348" in said) is (code == 1)
    assert ("largest drop by draft position: position 2 of 4" in said) is (code == 1)


def test_a_k_that_the_server_did_not_draft_with_cannot_be_saved_and_is_named(
    failing, measured, tmp_path
):
    """Where a drafted token takes .09 s and every pass .1 s, k = 1 is the best."""
    dear = tmp_path / "costs.yaml"
    passes = "{target_step_s: 0.1, verify: {2: 0.1, 5: 0.1}, drafts: {draft: {step_s: 0.09}}}"
    dear.write_text(f"engine: elsewhere 1.0\nconcurrency: {{1: {passes}}}")
    said = failing(2, "gate", "--save", tmp_path / "new.json", measured(), "--costs", dear)
    assert "cannot be judged: draft was served with k = 4 alone" in said
    assert "--k 4" in said
    assert not (tmp_path / "new.json").exists()


@pytest.mark.parametrize(
    ("pair", "faults", "code", "verdict", "said"),
    [
        (
            True,
            (9, 11, 13, 15, 17, 19),
            1,
            "FAIL",
            "6 of 12 requests were not answered: HTTP 503; 0 in the",
        ),
        (False, (13,), 3, "INCONCLUSIVE", "1 of 12 requests was not answered: HTTP 503; 0 in the"),
    ],
)
def test_requests_that_a_server_did_not_answer_are_judged_and_said_everywhere(
    command, save, measured, gated, tmp_path, pair, faults, code, verdict, said
):
    """Known fault: they were "missing", or "other traffic", and the gate passed."""
    outcome = gated(save(pair=pair), pair=pair, faults=faults)
    out, page = measured("after", pair=pair, faults=faults), tmp_path / "page.html"
    assert outcome.code == code, outcome.err
    assert outcome.out.startswith(verdict)
    assert said in " ".join(outcome.out.split())
    short = f"draft: {said.partition(';')[0]}"
    for words in ((out,), (out, "--all"), (out, "--format", "markdown")):
        assert short in " ".join(command("recommend", *words).out.split())
    assert short in " ".join(command("compare", measured(pair=pair), out).out.split())
    assert command("report", out, "--html", page).code == 0
    assert short in page.read_text()
