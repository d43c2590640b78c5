"""The commands as functions: their answers as records, and frames that hold what the files hold."""

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest

from draftbench import notebook
from draftbench.cli import main
from draftbench.errors import RunFolderError, UsageError

REFERENCE = Path(__file__).parents[1] / "results/reference/tinyllama-stories"
SAMPLE = Path(__file__).parent / "run_folder/samples/alone"


@pytest.fixture(scope="module")
def run():
    return notebook.read(REFERENCE)


def test_an_answer_is_what_the_command_prints(capsys, run):
    assert main(["recommend", str(REFERENCE), "--format", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    answer = json.loads(msgspec.json.encode(notebook.recommend(run)))
    assert {name: printed[name] for name in answer} == answer


def test_acceptance_is_of_the_runs_own_lengths_unless_others_are_asked(run):
    own = {reading.k for reading in notebook.acceptance(run).candidates[0].at_each_k}
    assert own == set(run.manifest.question.ks)
    assert {reading.k for reading in notebook.acceptance(run, k=[2]).candidates[0].at_each_k} == {2}


def test_a_run_compared_with_itself_has_all_requests_in_common(run):
    found = notebook.compare(run, run)
    assert (found.a, found.common_requests) == (str(REFERENCE), 12)


def test_a_report_is_a_page(run, tmp_path):
    notebook.report(run, tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    with pytest.raises(UsageError, match="cannot write"):
        notebook.report(run, tmp_path)


def test_flags_of_a_sweep_are_keywords(tmp_path):
    models = Path(str(files("draftbench"))) / "embedded"
    run = notebook.sweep(
        tmp_path / "run",
        target=models / "draft",
        drafts=["ngram"],
        controls=False,
        traffic="suite:completion",
        sample=2,
        max_new_tokens=8,
        k="1,2",
        measure="none",
        threads=1,
    )
    assert [str(candidate) for candidate in run.candidates] == ["ngram"]
    assert run.manifest.question.ks == (1, 2)


def test_a_mistake_is_raised_with_its_hint(tmp_path):
    with pytest.raises(UsageError) as raised:
        notebook.sweep(tmp_path / "run", target="t", traffic="suite:cod", drafts=["ngram"])
    assert raised.value.hint
    with pytest.raises(RunFolderError):
        notebook.read(tmp_path)


def test_a_run_opens_without_torch_and_the_package_without_the_run():
    program = (
        "import sys, draftbench; assert 'numpy' not in sys.modules\n"
        "from draftbench import notebook\n"
        f"notebook.recommend(notebook.read({str(REFERENCE)!r}))\n"
        "assert not {'torch', 'transformers', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_record_is_a_row():
    found = notebook.observations(notebook.read(SAMPLE))
    lines = (SAMPLE / "observations" / "trajectory.jsonl").read_text().count("\n")
    assert len(found["trajectories"]) == lines
    assert {"request", "output_tokens", "finish"} <= set(found["trajectories"].columns)


def test_a_candidates_figures_have_their_intervals_beside_them():
    found = notebook.candidates(notebook.read(REFERENCE))
    assert {"draft", "quant", "k", "alpha", "alpha_low", "alpha_high"} <= set(found.columns)
    known = found.dropna(subset=["alpha"])
    assert (known.alpha_low <= known.alpha).all()
