"""Whether a server drafts as its arm should, and how a user's server drafts."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from sweep.engine import FakeEngine, FakeServer, rows_of

from draftbench.engines.counters import Counters
from draftbench.errors import EngineError, UsageError
from draftbench.planner.recommend import recommend
from draftbench.records import Candidate, Failure, Served
from draftbench.run_folder.folder import RunFolder

LOOKUP = Candidate(draft="ngram")


def test_a_server_that_does_not_draft_needs_a_draft_to_replay(served, tmp_path):
    server = FakeServer()
    with pytest.raises(UsageError, match="does not draft, and no draft is given") as caught:
        served(on=[server], drafts=())
    assert "--drafts" in caught.value.hint
    assert all(ask.key == ("", 0) for ask in server.asked)  # nothing but what shows drafting
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("method", "model", "specs"),
    [
        ("draft_model", "org/small", {"small": "org/small"}),
        ("eagle3", "org/head", {"head": "eagle3:org/head"}),
        ("mtp", "org/target", {"target": "mtp"}),
        ("suffix", None, {"suffix": "suffix"}),
        # Which of two drafts it is, or which kind of head, it does not say.
        ("EAGLE", "org/head", {}),
        ("draft-simple,ngram-simple", None, {}),
        ("draft-simple", None, {}),
    ],
)
def test_what_drafts_would_call_a_running_servers_draft_is_kept_where_it_tells(
    served, method, model, specs
):
    settings = {"speculative_model": model} if model else {}
    server = FakeServer(k=2, method=method, settings=settings)
    found = served(on=[server], drafts=(), measure="replay")
    assert found.folder.manifest.specs == specs


def answers_of(folder):
    return [row for row in folder.records(Served) if row.error is None]


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ({"method": "ngram-simple"}, r"it says that it drafts \(ngram-simple\)"),
        ({"method": None, "k": 4}, r"it says that it drafts \(4 tokens a round\)"),
    ],
)
def test_a_server_without_a_draft_that_says_that_it_drafts_is_refused(
    served, tmp_path, says, words
):
    with pytest.raises(EngineError, match=f"asked as `without a draft`, and {words}"):
        served("ngram", on=FakeEngine(lambda *_: FakeServer(says=says)), measure="all", ks=(2,))
    folder = RunFolder(tmp_path / "run")
    (failed,) = folder.records(Failure)
    assert (failed.candidate, failed.stage) == (None, "serve")
    assert failed.reason.startswith("the server was asked as `without a draft`")
    assert "--engine-args" in failed.hint
    assert list(folder.records(Served)) == []


@dataclass
class Betraying(FakeServer):
    """Drafts in its answers from one of them on, whatever it was asked for and says."""

    after: int = 0
    drafts: int = 3

    def answer(self, ask):
        answer = super().answer(ask)
        measured = sum(bool(asked.key[0]) for asked in self.asked)
        if measured <= self.after or not ask.key[0]:
            return answer
        return replace(answer, proposed=(self.drafts,), accepted=(0,))


@pytest.mark.parametrize("after", [0, 1])
def test_a_server_without_a_draft_whose_answers_were_drafted_measures_nothing(
    served, tmp_path, after
):
    """Nor do the answers that it gave before it was found out."""
    engine = FakeEngine(lambda *_: Betraying(after=after))
    with pytest.raises(EngineError, match="asked as `without a draft`, and it drafted"):
        served("ngram", on=engine, measure="all", ks=(2,))
    folder = RunFolder(tmp_path / "run")
    errors = [row.error for row in folder.records(Served)]
    assert errors == [None] * after + ["other drafting"] * (1 + after)
    assert [failed.stage for failed in folder.records(Failure)] == ["serve"]
    run = served("ngram", measure="all", ks=(2,)).run
    assert len(rows_of(run, 0)) == len(rows_of(run, 2)) == 2
    assert run.failures == ()


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (FakeServer(says={"method": "none", "k": 0}), "it says that it does not draft"),
        (FakeServer(says={"k": 3}), "it says that it drafts 3 tokens a round"),
        (FakeServer(says={"method": "eagle3"}), "it says that it drafts by eagle3"),
        (
            FakeServer(says={"method": "ngram-simple,draft-simple"}),
            "it says that it drafts by draft-simple",
        ),
        (Betraying(), "it drafted 3 tokens in a round"),
    ],
)
def test_an_arm_that_drafts_otherwise_than_asked_is_a_failure(served, server, words):
    engine = FakeEngine(lambda start, n: server if start.speculation else None)
    found = served("ngram", on=engine, measure="all", ks=(2,))
    (failed,) = found.run.failures
    assert (failed.candidate, failed.stage) == (LOOKUP, "serve")
    assert failed.reason == f"the server was asked as `ngram: k = 2`, and {words}"
    assert rows_of(found.run, 2) == []
    assert [row for row in found.run.decodes if row.k] == []


def test_an_arm_with_another_draft_model_is_a_failure(served, small):
    foreign = FakeServer(settings={"speculative_model": "/models/foreign"})
    engine = FakeEngine(lambda start, n: foreign if start.speculation else None)
    draft = str(small.models / "draft")
    run = served(draft, on=engine, measure="all", ks=(2,), controls=False).run
    assert [failed.reason.partition(", and ")[2] for failed in run.failures] == [
        "it says that it drafts with foreign"
    ]


@dataclass
class Silent(FakeServer):
    """Says that it drafts, and proposes nothing: in each answer, or by its counter alone."""

    tells: bool = True

    def answer(self, ask):
        nothing = () if self.k and self.tells else None
        return replace(super().answer(ask), proposed=nothing, accepted=nothing)

    def counters(self):
        return Counters(drafted=0)


@pytest.mark.parametrize("tells", [True, False])
def test_an_arm_that_proposes_nothing_at_all_is_a_failure(served, small, tells):
    draft = str(small.models / "draft")
    engine = FakeEngine(lambda *_: Silent(tells=tells))
    found = served(draft, on=engine, measure="all", ks=(2,), controls=False)
    (failed,) = found.run.failures
    assert failed.reason.endswith("`draft: k = 2`, and it drafted nothing")
    assert rows_of(found.run, 2) == []
    kept = [row for row in found.folder.records(Served) if row.k]
    assert [row.error for row in kept] == [None, None, "other drafting", "other drafting"]
    again = served(draft, measure="all", ks=(2,), controls=False)
    assert (again.engine.arms, again.run.failures) == ([2], ())
    assert len(rows_of(again.run, 2)) == 2


def test_prompt_lookup_that_finds_nothing_is_measured(served):
    """The texts of these servers count up: replay shows that there is nothing to repeat."""
    run = served("ngram", on=FakeEngine(lambda *_: Silent()), measure="all", ks=(2,)).run
    assert run.failures == ()
    assert len(rows_of(run, 2)) == 2


class Coy(FakeServer):
    """Drafts 4 tokens a round and does not say so; its first answer is too short to show it."""

    def answer(self, ask):
        answer = super().answer(ask)
        first = sum(asked.key == ("", 0) for asked in self.asked) == 1
        return replace(answer, proposed=(1,), accepted=(0,)) if first else answer


def test_a_k_that_a_server_does_not_say_is_the_largest_that_it_proposed(served, small):
    run = served("ngram", on=[Coy(k=4, says={"method": None, "k": None})], controls=False).run
    assert {row.k for row in run.served} == {4}
    assert any("does not say how many" in note for note in small.notes)


def test_a_k_that_neither_facts_nor_answers_show_is_an_error(served):
    class Sums(Silent):
        def answer(self, ask):
            return replace(super().answer(ask), drafted=9, kept=3)

        def counters(self):
            return Counters()

    with pytest.raises(EngineError, match="does not say how many tokens per round"):
        served("ngram", on=[Sums(k=4, method="draft-simple", says={"k": None})])


def test_what_a_server_drafts_is_listed_at_its_k(served):
    """Though no speed is known, and its k was not among those that were asked about."""
    run = served("ngram", on=[FakeServer(k=4, method="ngram")], controls=False, ks=(1, 2)).run
    (listed,) = recommend(run).by_candidate
    assert (str(listed.candidate), listed.k, listed.requests_served) == ("ngram", 4, 2)


def test_the_script_that_checks_a_run_says_in_a_line_that_a_folder_is_none(tmp_path):
    script = Path(__file__).parents[2] / "scripts" / "check_engine.py"
    words = [sys.executable, str(script), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: `{tmp_path}`")
