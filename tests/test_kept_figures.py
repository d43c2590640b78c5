"""The kept runs say what they said before the house was rebuilt, figure by figure.

`tests/kept` has what `recommend`, `acceptance --all`, `export`, `gate` and `compare` printed as
JSON then. Numbers, decisions and names are compared, sentences are not. A figure under a new name
is in RENAMED, one that was dropped on purpose in DROPPED; a changed value needs an entry in the
changelog that names the mended fault.
"""

import json
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from draftbench.cli import app
from draftbench.notebook import RunFolder
from draftbench.planner.recommend import recommend
from draftbench.run_folder.run import read_run

KEPT = Path(__file__).parent / "kept"
REFERENCE = Path("results/reference")
RUNS = ("qwen2.5-coder", "tinyllama-stories", "tinyllama-gsm8k")
RUNS += ("h200-8b", "h200-8b-32", "h200-8b-loads")
ENGINES = ("vllm", "sglang", "llamacpp", "tensorrt-llm", "transformers")

# Old path → new path, as regular expressions over "a.b[0].c".
RENAMED: dict[str, list[tuple[str, str]]] = {
    "recommend": [(r"levels\[(.*)", r"by_concurrency[\1")],
    # A card is called a candidate.
    "acceptance": [(r"cards\[(\d+)\]\.(.*)", r"candidates[\1].\2")],
    "compare": [],
    "gate-self": [],
    "gate-save": [],
}
# Old paths that no longer exist, as regular expressions, each with what a user loses by it.
DROPPED: dict[str, list[str]] = {
    "recommend": [
        # By how much acceptance may fall (`headroom[].to_pay` says from which acceptance it pays).
        r"break_even\..*",
        r"evaluations\[\d+\]\.break_even_alpha",
        # Rules of thumb.
        r"advice\[\d+\]\..*",
    ],
    "acceptance": [
        # α by kind of token (words, numbers, punctuation): the last groups of the one run that has
        # it.
        r"cards\[\d+\]\.breakdown\.groups\[(18|19|20|21)\]\..*",
        # Draft steps per round by temperature (tokens per round are in `rounds_by_group`).
        r"cards\[\d+\]\.temperatures.*",
        # The share of rejections in each tenth of a response (α by third stays).
        r"cards\[\d+\]\.breakdown\.rejections.*",
        # What-ifs that no sweep decodes with: drafting that stops when unsure.
        r"cards\[\d+\]\.stopping.*",
        # α of each segment at each temperature (α by segment and by temperature stay).
        r"cards\[\d+\]\.breakdown\.crossings.*",
        # The tokens that cost the most rounds, which `--show-text` showed.
        "disagreements",
    ],
    "compare": [],
    # The run that the baseline was made from does not pass, nor any check of it.
    "gate-self": [r"(checks\[\d+\]\.|texts\.)?verdict", "exit_code"],
    # Later layouts add fields.
    "gate-save": ["schema_version"],
}


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[1])


def leaves(value, path=""):
    """Every number, truth value, name and null under its path; sentences left out."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield from leaves(child, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for at, child in enumerate(value):
            yield from leaves(child, f"{path}[{at}]")
    elif not (isinstance(value, str) and " " in value):
        yield path, value


def output(*words, to=None):
    found = CliRunner().invoke(app, [str(word) for word in words])
    assert found.exit_code == 0, found.output
    return json.loads(to.read_text() if to else found.stdout)


# Kinds of caveats that `recommend` no longer has: a table or its checks say the same.
NO_CAVEATS = ("interval", "concurrency", "other-clock")


def check(what, run, new):
    old = json.loads((KEPT / run / f"{what}.json").read_text())
    if what == "recommend":
        old["caveats"] = [each for each in old["caveats"] if each["kind"] not in NO_CAVEATS]
    now = dict(leaves(new))
    wrong = []
    for path, value in leaves(old):
        if any(re.fullmatch(gone, path) for gone in DROPPED[what]):
            continue
        moved = path
        for before, after in RENAMED[what]:
            if re.fullmatch(before, path):
                moved = re.sub(before, after, path)
                break
        if moved not in now:
            wrong.append(f"{path}: {value!r} is gone (looked at {moved})")
        elif isinstance(value, float) and isinstance(now[moved], (int, float)):
            # Draws are sorted for an interval, and kinds of CPU add in another order.
            if now[moved] != pytest.approx(value, rel=1e-6, abs=1e-9):
                wrong.append(f"{path}: {value!r} became {now[moved]!r}")
        elif now[moved] != value:
            wrong.append(f"{path}: {value!r} became {now[moved]!r}")
    assert not wrong, f"{len(wrong)} differ:\n" + "\n".join(wrong[:40])


def test_every_entry_is_of_a_figure_that_was_kept():
    for what, renamed in RENAMED.items():
        files = (KEPT / run / f"{what}.json" for run in RUNS)
        paths = [path for file in files for path, _ in leaves(json.loads(file.read_text()))]
        for pattern in (*(before for before, _ in renamed), *DROPPED[what]):
            assert any(re.fullmatch(pattern, path) for path in paths), pattern


@pytest.mark.parametrize("run", RUNS)
def test_recommend_says_what_it_said(run):
    check("recommend", run, output("recommend", REFERENCE / run, "--format", "json"))


@pytest.mark.parametrize("run", RUNS)
def test_requests_in_another_order_have_the_same_answer(run):
    read = read_run(RunFolder(REFERENCE / run))
    last_first = read.replays[::-1]
    replays = sorted(last_first, key=lambda row: read.candidates.index(row.candidate))
    turned = replace(read, trajectories=read.trajectories[::-1], replays=tuple(replays))
    check("recommend", run, json.loads(msgspec.json.encode(recommend(turned))))


@pytest.mark.parametrize("run", RUNS)
def test_acceptance_says_what_it_said(run):
    words = ("acceptance", REFERENCE / run, "--all", "--format", "json")
    check("acceptance", run, output(*words))


@pytest.mark.parametrize("run", RUNS)
def test_compare_says_what_it_said(run):
    words = ("compare", REFERENCE / run, REFERENCE / "tinyllama-stories", "--format", "json")
    check("compare", run, output(*words))


@pytest.mark.parametrize("run", RUNS)
def test_a_gate_of_a_run_against_itself_says_what_it_said_and_is_inconclusive(run):
    words = ("gate", "--baseline", REFERENCE / run, REFERENCE / run, "--format", "json")
    result = output(*words)
    check("gate-self", run, result)
    assert (result["verdict"], result["exit_code"]) == ("inconclusive", 3)


@pytest.mark.parametrize("run", RUNS)
def test_a_saved_baseline_holds_what_it_held(run, tmp_path):
    path = tmp_path / "baseline.json"
    found = CliRunner().invoke(app, ["gate", "--save", str(path), str(REFERENCE / run)])
    assert found.exit_code == 0, found.output
    check("gate-save", run, json.loads(path.read_text()))


@pytest.mark.parametrize("run", RUNS)
def test_an_exported_configuration_is_the_one_it_was(answers, monkeypatch, run):
    """One answer for every engine: what is made of it differs."""
    monkeypatch.setattr("draftbench.cli.export.answer_for", lambda *_, **__: answers[run])
    for engine in ENGINES:
        found = CliRunner().invoke(app, ["export", str(REFERENCE / run), "--engine", engine])
        assert found.exit_code == 0, found.output
        assert found.stdout == (KEPT / run / f"export-{engine}.txt").read_text()
