"""A marker planted in the traffic is found in nothing that may be shared."""

from __future__ import annotations

import hashlib
import itertools
import json

import pytest

from draftbench.cli import main
from draftbench.models.source import ModelSource
from draftbench.store.folder import RunFolder

MARKER = "zebra-quartz-4711 lives at 12 Elm Street"
LONG_ENOUGH = 5  # so many token ids in a row do not meet by chance


@pytest.fixture
def traffic(tmp_path):
    """Requests that hold the marker wherever a log may hold text; segments are labels."""
    path = tmp_path / "prod.jsonl"
    rows = [
        {
            "id": f"{MARKER} {i}",
            "prompt": f"def f{i}():\n    # {MARKER}\n    return",
            "response": f" {i}  # {MARKER}\n",
            "user": MARKER,
            "metadata": {"customer": MARKER},
            "segment": "code",
            "temperature": 0.7 * i,
            "stop": [MARKER],
        }
        for i in range(2)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def sweep(small, traffic, out, *more):
    models = ["--target", str(small.models / "target"), "--drafts", str(small.models / "draft")]
    effort = ["--measure", "all", "--k", "1-2", "--max-new-tokens", "10", "--threads", "1"]
    return main(["sweep", *models, "--traffic", str(traffic), "--out", str(out), *effort, *more])


def secrets(folder, small):
    """The marker, every text, their hashes without a key, and every run of tokens."""
    tokenizer = ModelSource(str(small.models / "target")).tokenizer
    texts = list(folder.private_texts())
    words = [MARKER, *MARKER.split()[:1], *(tokenizer.decode(t.tokens) for t in texts)]
    sequences = [tokenizer(MARKER)["input_ids"], *(t.prompt for t in texts),
                 *(t.tokens for t in texts)]  # fmt: skip
    plain = [word.encode() for word in words if len(word) > 8]
    plain += [repr(tuple(ids)).encode() for ids in sequences]
    hashes = [
        getattr(hashlib, kind)(text).hexdigest()[:16].encode()
        for kind in ("sha256", "sha1", "md5")
        for text in plain
    ]
    runs = [
        separator.join(map(str, ids[i : i + LONG_ENOUGH])).encode()
        for ids in sequences
        for i in range(len(ids) - LONG_ENOUGH + 1)
        if len(set(ids[i : i + LONG_ENOUGH])) > 2
        for separator in (",", ", ", " ")
    ]
    assert len(plain) >= 6
    assert len(runs) >= 100
    return [*plain, *hashes, *runs]


def test_nothing_that_may_be_shared_holds_the_marker(tmp_path, small, traffic, capfd):
    out, shared = tmp_path / "run", {}
    assert sweep(small, traffic, out, "--format", "json") == 0
    for style in ("table", "json", "markdown", "csv"):
        assert main(["recommend", str(out), "--format", style]) == 0
    page = tmp_path / "page.html"
    assert main(["report", str(out), "--html", str(page)]) == 0
    assert main(["gate", "--save", str(tmp_path / "b.json"), str(out)]) == 0
    main(["gate", "--baseline", str(tmp_path / "b.json"), str(out)])
    told = capfd.readouterr()
    shared["stdout"], shared["stderr"] = told.out.encode(), told.err.encode()
    for path in [tmp_path / "b.json", page, *out.rglob("*")]:
        if path.is_file() and path.parent.name != "private":
            shared[path.name] = path.read_bytes()
            shared[f"name of {path.name}"] = path.name.encode()
    found = secrets(RunFolder(out), small)
    assert any(secret in (out / "private" / "texts.jsonl").read_bytes() for secret in found)
    for (where, data), secret in itertools.product(shared.items(), found):
        assert secret not in data, where


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [MARKER]},
        {"prompt": "x", "temperature": MARKER},
        {"messages": [{"role": MARKER, "content": MARKER}]},
        {"messages": [{"role": "user", "content": MARKER}]},
        {MARKER: "x"},
    ],
)
def test_no_error_about_a_row_quotes_it(tmp_path, small, capfd, row):
    path = tmp_path / "prod.jsonl"
    path.write_text(json.dumps(row) + "\n")
    assert sweep(small, path, tmp_path / "run") == 2
    told = capfd.readouterr()
    assert "error: " in told.err
    assert "zebra" not in told.out + told.err


def test_redacting_changes_no_figure(tmp_path, small, traffic, capsys):
    out = tmp_path / "run"
    assert sweep(small, traffic, out, "--format", "json") == 0
    answers = []
    for command in (["runs", "redact", str(out)], None):
        capsys.readouterr()
        assert main(["recommend", str(out), "--format", "json"]) == 0
        answers.append(capsys.readouterr().out)
        if command:
            assert main(command) == 0
    assert answers[0] == answers[1]
    assert not (out / "private").exists()
