"""`draftbench.Run`: the commands' answers as records."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest

import draftbench
from draftbench.cli import main
from draftbench.errors import UsageError

REFERENCE = Path(__file__).parents[1] / "results/reference/tinyllama-stories"


def test_an_answer_is_what_the_command_prints(capsys):
    assert main(["recommend", str(REFERENCE), "--format", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    answer = json.loads(msgspec.json.encode(draftbench.Run(REFERENCE).recommend()))
    assert {name: printed[name] for name in answer} == answer


def test_acceptance_is_of_the_runs_own_lengths_unless_others_are_asked():
    run = draftbench.Run(REFERENCE)
    own = {reading.k for reading in run.acceptance().candidates[0].at_each_k}
    assert own == set(run.observed.manifest.question.ks)
    assert {reading.k for reading in run.acceptance(k=[2]).candidates[0].at_each_k} == {2}


def test_a_run_compared_with_itself_has_all_requests_in_common():
    run = draftbench.Run(REFERENCE)
    assert run.compare(run).common_requests == 12


def test_flags_of_a_sweep_are_keywords(tmp_path):
    models = Path(str(files("draftbench"))) / "embedded"
    run = draftbench.Run.sweep(
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
    assert [str(candidate) for candidate in run.observed.candidates] == ["ngram"]
    assert run.observed.manifest.question.ks == (1, 2)


def test_a_mistake_is_raised_with_its_hint(tmp_path):
    with pytest.raises(UsageError) as raised:
        draftbench.Run.sweep(tmp_path / "run", target="t", traffic="suite:cod", drafts=["ngram"])
    assert raised.value.hint


def test_a_run_opens_without_torch_and_the_package_without_the_run():
    program = (
        "import sys, draftbench; assert 'numpy' not in sys.modules\n"
        f"draftbench.Run({str(REFERENCE)!r}).recommend()\n"
        "assert not {'torch', 'transformers', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_nothing_else_is_in_the_package():
    with pytest.raises(AttributeError, match="no attribute `Rum`"):
        _ = draftbench.Rum
