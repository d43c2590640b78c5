"""The documentation says what the program does: formats from records, examples from runs."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import doc_formats as formats
import pytest
from scenes import ROOT

from draftbench.cli import main
from draftbench.cli.output import width
from draftbench.memory import LEVELS
from draftbench.planner.cost_sources import read_engine_costs
from draftbench.records import Candidate
from draftbench.run_folder.manifest import PACKAGES

DOCS = sorted((ROOT / "docs").glob("*.md"))
REFERENCE = "results/reference/qwen2.5-coder"
JSON_COMMANDS = (
    ("recommend", REFERENCE),
    ("acceptance", REFERENCE),
    ("compare", "results/reference/tinyllama-gsm8k", "results/reference/tinyllama-stories"),
    ("gate", "--baseline", "results/baselines/qwen2.5-coder.json", REFERENCE),
    ("estimate", "--alpha", "0.7", "--draft-cost", "0.1"),
    ("runs", "list", "results/reference"),
    ("check", "--target", "draftbench/embedded/target", "--drafts", "draftbench/embedded/draft"),
    ("traffic",),
    (
        *("sweep", "--dry-run", "--target", "draftbench/embedded/target"),
        *("--drafts", "draftbench/embedded/draft", "--traffic", "suite:completion"),
    ),
)


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "88")


def keys(value) -> set[str]:
    """All keys somewhere in a JSON value, those of free objects included."""
    if isinstance(value, list):
        return {key for part in value for key in keys(part)}
    if isinstance(value, dict):
        return set(value) | {key for part in value.values() for key in keys(part)}
    return set()


def test_the_page_of_formats_is_what_the_script_writes():
    assert (ROOT / "docs/formats.md").read_text() == formats.page()


def test_every_field_has_a_meaning_and_every_meaning_a_field():
    assert formats.unexplained() == []
    assert formats.unused() == []


@pytest.mark.parametrize("words", JSON_COMMANDS, ids=lambda words: words[0])
def test_every_key_that_a_command_prints_is_documented(words, capsys):
    main([*words, "--format", "json"])
    printed = keys(json.loads(capsys.readouterr().out))
    page = (ROOT / "docs/formats.md").read_text()
    free = {name for name in printed if not re.fullmatch("[a-z][a-z0-9_]*", name)}
    # Levels, packages and roles are keys of free objects, named with their values if at all.
    free |= {*LEVELS, *PACKAGES, "eos_token", "bos_token"}
    assert sorted(name for name in printed - free if f"`{name}`" not in page) == []


def test_the_file_of_costs_on_the_page_of_formats_can_be_copied(tmp_path):
    page = (ROOT / "docs/formats.md").read_text().partition("## An engine's costs")[2]
    copied = tmp_path / "costs.yaml"
    copied.write_text(page.partition("```yaml\n")[2].partition("```")[0])
    draft = Candidate("qwen0.5", "int4")
    costs = read_engine_costs(copied, [draft])
    assert (costs.runner, costs.concurrencies(draft)) == ("llama.cpp b4000, 4-bit GGUF", (1,))
    # 27.5 tokens a second are 36.4 ms a token.
    assert costs.blocks[draft][1].draft_cost_ratio(0.0).value == pytest.approx(0.021 * 27.5)


def examples(page: Path) -> list[tuple[str, str]]:
    """Console blocks: each `$ command` with the lines below it, up to the next command."""
    blocks = []
    for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL):
        for part in re.split(r"(?m)^\$ ", block)[1:]:
            command, _, shown = part.partition("\n")
            blocks.append((command, shown.rstrip("\n")))
    return blocks


EXAMPLES = [
    pytest.param(command, shown, id=f"{page.stem}: {command}")
    for page in DOCS
    for command, shown in examples(page)
]


@pytest.mark.parametrize(("command", "shown"), EXAMPLES)
def test_an_example_prints_what_the_page_shows(command, shown, capsys):
    """A line of `…` stands for lines that were left out."""
    program, *words = shlex.split(command)
    assert program == "draftbench"
    assert width() == 88
    main(words)
    printed = capsys.readouterr().out
    position = 0
    for piece in re.split(r"(?m)^…$\n?", shown):
        text = piece.strip("\n")
        at = printed.find(text, position)
        assert at >= 0, f"not printed: {text}\n--- printed:\n{printed}"
        position = at + len(text)


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.stem)
def test_flags_and_commands_that_a_page_names_exist(page):
    from typer.main import get_command

    from draftbench.cli import app

    known = get_command(app).commands
    for line in re.findall(r"draftbench ([a-z]+[^`\n]*)", page.read_text()):
        name, *words = line.split()
        if name not in known:
            continue
        command = known[name]
        ones = [command, *getattr(command, "commands", {}).values()]
        parameters = [parameter for one in ones for parameter in one.params]
        flags = {flag for p in parameters for flag in (*p.opts, *p.secondary_opts)} | {"--help"}
        for word in words:
            if re.fullmatch(r"--[a-z][a-z-]*", word):
                assert word in flags, f"{page.name}: draftbench {name} has no {word}"


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.stem)
def test_links_lead_to_files_that_are_there(page):
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), link


def test_the_tests_that_ci_names_are_there():
    named = re.findall(r"tests/[\w/.]+", (ROOT / ".ci/run").read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_python_example_runs_as_it_stands():
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    (shown,) = re.findall(r"```text\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.DOTALL)
    assert done.stdout.strip() == shown.strip()


def test_what_the_pages_for_contributors_name_is_there():
    pages = ("architecture", "adding")
    rows = [row for name in pages for row in (ROOT / f"docs/{name}.md").read_text().splitlines()]
    texts = {
        f"/{file.relative_to(ROOT)}": file.read_text()
        for folder in ("draftbench", "scripts", "tests")
        for file in (ROOT / folder).rglob("*.py")
    }

    def text_of(name: str) -> str:
        """The text of the files whose path ends so."""
        matching = [text for path, text in texts.items() if path.endswith(f"/{name}")]
        assert matching, f"no file {name}"
        return "\n".join(matching)

    # `file.py`, `file.py: name`
    named = [match for row in rows for match in re.findall(r"`([\w/.]+\.py)(: [\w, .]+)?`", row)]
    # `A`, `B` and `C` in `file.py`
    listed = r"((?:`[\w.]+`(?:, | and )?)+)(?: \([^)]*\))? (?:in|of) `([\w/.]+\.py)`"
    named += [(file, names) for row in rows for names, file in re.findall(listed, row)]
    assert sum(bool(names) for _, names in named) > 20
    for file, names in named:
        words = re.findall(r"\w+", text_of(file))
        assert set(re.findall(r"\w+", names)) <= set(words), file
    # `name` or `Record.name` without a file: a word of the sources, or a script.
    known = set(re.findall(r"\w+", " ".join([*texts, *texts.values()])))
    known |= {file.name for file in (ROOT / "scripts").iterdir()}
    codes = {code for row in rows for code in re.findall(r"`([A-Za-z_][\w.]*)`", row)}
    assert {code for code in codes if not set(code.split(".")) <= known} == set()


def test_every_script_is_named_with_what_it_shows():
    page = (ROOT / "docs/adding.md").read_text().partition("## Scripts")[2]
    scripts = {file.name for file in (ROOT / "scripts").iterdir() if file.is_file()}
    assert {name for name in scripts if f"`{name}" not in page} == set()
    assert {name for name in re.findall(r"`(\w+\.py)", page) if name not in scripts} == set()
