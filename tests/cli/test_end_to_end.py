"""The whole path on the embedded models: sweep, recommend, gate; what is printed where, and what
the exit codes say.
"""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from draftbench.cli.sweep import _same_texts
from draftbench.planner.recommendation import Audit

CONTRACT = ("decision", "choice", "evaluations", "requests", "output_tokens", "prediction_error")
FIGURES = (
    "alpha",
    "mean_accepted_length",
    "draft_cost_ratio",
    "verify_ratio",
    "speedup_predicted",
    "speedup_measured",
)
HEAVY = {"torch", "transformers", "pandas", "matplotlib", "datasets"}


def test_a_sweep_prints_its_answer_and_says_the_rest_on_stderr(swept):
    folder, outcome = swept
    # The stranger failed: the answer to "could all be measured" is no.
    assert outcome.code == 1
    assert "draft" in outcome.out
    words = " ".join(outcome.out.split())
    assert (
        "`): `stranger` cannot draft for `target`: it has only 0% of the traffic's tokens" in words
    )
    assert "so it was refused" in words
    assert "refused stranger" in outcome.err
    # Before it stands the sweep that would settle the decision, where it is open.
    following = " ".join(outcome.err.replace("\\\n", "").split()).partition("next: ")[2]
    assert f"draftbench recommend {folder}" in following
    assert "next:" not in outcome.out


def test_what_may_be_shared_holds_no_text(swept):
    """No prompt of the suite and no token ids outside the private part."""
    folder, _ = swept
    shared = "".join(
        path.read_text() for path in folder.rglob("*.json*") if "private" not in path.parts
    )
    assert "def " not in shared
    assert '"tokens"' not in shared
    assert (folder / "private").stat().st_mode & 0o077 == 0


def test_json_has_the_fields_that_scripts_rely_on_and_the_figures_of_the_pair(command, swept):
    outcome = command("recommend", swept[0], "--format", "json")
    assert (outcome.code, outcome.err) == (0, "")
    answer = json.loads(outcome.out)
    assert set(CONTRACT) <= set(answer)
    assert answer["decision"] in ("speculate", "do_not_speculate", "inconclusive")
    assert answer["requests"] == 6
    assert answer["output_tokens"] <= 6 * 24
    cells = {(c["draft"], c["k"]): c for c in answer["evaluations"]}
    assert set(cells) == {(draft, k) for draft in ("draft", "ngram") for k in (1, 2)}
    for cell in cells.values():
        for figure in (cell[name] for name in FIGURES):
            assert figure is None or {"value", "low", "high"} <= set(figure)
    assert cells["ngram", 1]["alpha"] is None
    assert set(answer["prediction_error"]) >= {"median"}
    (failure,) = answer["failures"]
    assert (failure["candidate"]["draft"], failure["stage"]) == ("stranger", "pair")
    one, two = cells["draft", 1], cells["draft", 2]
    # α belongs to the pair, not to k; a longer draft never accepts fewer tokens a round.
    assert one["alpha"] == two["alpha"]
    assert 0.1 < one["alpha"]["value"] < 0.9
    assert 1 < one["mean_accepted_length"]["value"] < two["mean_accepted_length"]["value"] < 3
    assert 0 < one["draft_cost_ratio"]["value"] < 1
    measured = [c for c in cells.values() if c["speedup_measured"]]
    assert measured
    for cell in measured:
        counted = cell["mean_accepted_length_measured"]["value"]
        assert counted == pytest.approx(cell["mean_accepted_length"]["value"], rel=0.15)


def test_a_speed_up_that_is_not_enough_is_not_recommended_and_no_failure(command, swept):
    outcome = command("recommend", swept[0], "--min-speedup", 50, "--format", "json")
    answer = json.loads(outcome.out)
    assert (outcome.code, answer["decision"], answer["choice"]) == (0, "do_not_speculate", None)


def test_the_same_command_again_measures_nothing_again(command, failing, swept, sweep_words):
    folder, first = swept

    def observations():
        return {path.name: path.read_text() for path in (folder / "observations").iterdir()}

    before = observations()
    again = command(*sweep_words, "--out", folder)
    assert again.code == 1
    after = observations()
    for kind in ("trajectory", "replay", "lookupreplay", "decode", "costpoint", "failure"):
        assert after[f"{kind}.jsonl"] == before[f"{kind}.jsonl"], kind
    assert again.out == first.out
    said = failing(2, *sweep_words, "--out", folder, "--temperature", 0.5)
    assert "other settings (--temperature: none → 0.5)" in said


def test_an_unexpected_error_is_no_verdict(command, failing, monkeypatch, swept):
    def broken(folder):
        raise ZeroDivisionError("a prompt")

    monkeypatch.setattr("draftbench.run_folder.run.read_run", broken)
    said = failing(70, "recommend", swept[0])
    assert re.search(r"internal error: ZeroDivisionError in draftbench\.cli\.\w+, line \d+\n", said)
    assert "report" in said
    assert "a prompt" not in said
    monkeypatch.setenv("DRAFTBENCH_TRACEBACK", "1")
    said = command("recommend", swept[0]).err
    assert said.startswith("Traceback")
    assert "ZeroDivisionError: a prompt" in said


def test_the_offline_commands_import_no_heavy_library(swept, pinned):
    """In a fresh interpreter each: help, recommend and gate."""
    folder = str(swept[0])
    lines = (["--help"], ["recommend", folder], ["gate", "--baseline", str(pinned), folder])
    for words in lines:
        program = (
            "import sys; from draftbench.cli import main\n"
            f"code = main({words!r})\n"
            "print(code, sorted(sys.modules), file=sys.stderr)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "DRAFTBENCH_KEY": "the key of the tests"},
        )
        code, _, modules = done.stderr.strip().splitlines()[-1].partition(" ")
        assert code == "0", done.stderr
        assert not HEAVY & {name.strip("' ") for name in modules[1:-1].split(",")}


SEEN = (
    "of 6 outputs at temperature 0, {} are identical to the target's, {} differ only at near ties"
)


@pytest.mark.parametrize(
    ("checked", "said"),
    [
        (Audit(6, 5, 1, 0), f"texts: {SEEN.format(5, 1)}, 0 unexplained"),
        (None, "texts: nothing was decoded at temperature 0; add `--temperature 0`"),
    ],
)
def test_texts_that_stay_the_same_are_a_sentence(checked, said):
    assert _same_texts(checked) == said


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            None,
            f"speculation changes the output: {SEEN.format(3, 2)}, 1 unexplained hint: suspect the "
            "decoder or a kernel",
        ),
        ("too often", "the decoder changes the distribution of the output: too"),
    ],
)
def test_a_change_of_what_is_written_is_an_error_if_it_must_not_be(
    command, swept, sweep_words, tmp_path, monkeypatch, fault, said
):
    """Of an ended sweep, which is not measured again; it answers unless the decoder is at fault."""
    run = shutil.copytree(swept[0], tmp_path / "run")
    monkeypatch.setattr("draftbench.sweep.measure.distribution_fault", lambda mode: fault)
    monkeypatch.setattr("draftbench.planner.recommend.audit", lambda run: Audit(6, 3, 2, 1))
    outcome = command(*sweep_words, "--out", run, "--lossless")
    assert f"error: {said}" in " ".join(outcome.err.split())
    assert (outcome.code, bool(outcome.out)) == (1, fault is None)
