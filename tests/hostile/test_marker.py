"""A marker planted in the traffic is searched for in everything that a user might hand on: what
every command prints, writes and draws, in clear, encoded, as token ids and as hashes without a key.
"""

import base64
import contextlib
import hashlib
import io
import json
import re
import zlib
from pathlib import Path

import pytest
from scenes import EMBEDDED

from draftbench.cli import main
from draftbench.models.source import ModelSource
from draftbench.run_folder.folder import PrivateText, RunFolder

pytestmark = pytest.mark.slow

MARKER = "zebra-quartz-4711 lives at 12 Elm Street"
IDS = 5  # so many token ids in a row do not meet by chance


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Everything that may be shared of a sweep over marked traffic: name → bytes; and the run."""
    place = tmp_path_factory.mktemp("marked")
    rows = [
        {
            "id": f"{MARKER} {i}",
            "prompt": f"def f{i}():\n    # {MARKER}\n    return",
            "response": f" {i}  # {MARKER}\n",
            "user": MARKER,
            "metadata": {"customer": MARKER},
            "stop": [MARKER],
            "segment": "code",
            "temperature": 0.7 * (i == 2),
        }
        for i in range(6)  # under five no figure has an interval to draw
    ]
    traffic = place / "prod.jsonl"
    traffic.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFTBENCH_KEY", "the key of the tests")
        output = {f"printed by {' '.join(words)}": printed(words) for words in commands(place)}
    files = {
        str(path.relative_to(place)): path.read_bytes()
        for path in place.rglob("*")
        if path.is_file() and path != traffic and "private" not in path.parts
    }
    return {**output, **files}, RunFolder(place / "run")


def commands(place):
    """Every command that can be given a run, and the sweep that makes it."""
    run, models = str(place / "run"), ["--target", str(EMBEDDED / "target")]
    effort = ["--measure", "all", "--k", "1-2", "--max-new-tokens", "10", "--threads", "1"]
    log = ["--traffic", str(place / "prod.jsonl")]
    sweep = ["sweep", *models, "--drafts", str(EMBEDDED / "draft"), *log, "--out", run, *effort]
    yield [*sweep, "--dry-run"]
    yield [*sweep, "--verbose"]
    yield sweep
    yield ["check", *models, "--drafts", str(EMBEDDED / "draft"), *log]
    for style in ("table", "json", "markdown", "csv"):
        yield ["recommend", run, "--format", style]
        yield ["acceptance", run, "--format", style, "--all"]
    yield ["report", run, "--html", f"{place}/page.html", "--plots", f"{place}/plots"]
    yield ["compare", run, run]
    yield ["compare", run, run, "--format", "markdown"]
    yield ["export", run, "--engine", "vllm", "--anyway"]
    yield ["runs", "list", str(place)]
    base = ["gate", "--save", f"{place}/base.json", run, "--candidate", "draft", "--k", "2"]
    yield base
    ci = ["--junit", f"{place}/junit.xml"]
    for style in ("table", "json", "markdown"):
        judge = ["gate", "--baseline", f"{place}/base.json", run, "--format", style]
        yield [*judge, *ci, "--annotations", "github"]


def printed(words):
    """Everything that a command printed; it must have worked."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main(words)
    assert code in (0, 1, 3), out.getvalue()[-500:]
    return out.getvalue().encode()


def unpacked(data):
    """The bytes, and what is packed in them: drawings in a page, compressed text in a picture."""
    found = [data]
    found += [base64.b64decode(code) for code in re.findall(rb"base64,([A-Za-z0-9+/=]+)", data)]
    for packed in [*found]:
        for match in re.finditer(rb"\x78[\x01\x9c\xda]", packed):
            with contextlib.suppress(zlib.error):
                found.append(zlib.decompressobj().decompress(packed[match.start() :]))
    return b"\n".join(found)


def secrets(folder):
    """What must be nowhere: texts, their pieces, encodings and hashes, and runs of token ids."""
    tokenizer = ModelSource(str(EMBEDDED / "target")).tokenizer
    texts = list(folder.records(PrivateText))
    words = [MARKER, *MARKER.split(), *(tokenizer.decode(t.tokens) for t in texts)]
    clear = [word.encode() for word in words if len(word) > 8]
    sequences = [
        list(tokenizer(MARKER)["input_ids"]),
        *(list(ids) for t in texts for ids in (t.prompt, t.tokens)),
    ]
    hashed = [*clear, *(repr(tuple(ids)).encode() for ids in sequences)]
    digests = [
        getattr(hashlib, kind)(text).hexdigest()[:12].encode()
        for kind in ("sha256", "sha1", "md5")
        for text in hashed
    ]
    runs = [
        separator.join(map(str, ids[at : at + IDS])).encode()
        for ids in sequences
        for at in range(len(ids) - IDS + 1)
        if len(set(ids[at : at + IDS])) > 2
        for separator in (",", ", ", " ")
    ]
    encoded = [base64.b64encode(b"." * shift + clear[0])[4:-4] for shift in range(3)]
    escaped = [json.dumps(MARKER).encode(), clear[0].hex().encode(), clear[0].replace(b" ", b"%20")]
    return [*clear, *digests, *runs, *encoded, *escaped]


def test_everything_that_may_be_shared_was_searched(shared):
    found, _ = shared
    kinds = {Path(name).suffix for name in found if not name.startswith("printed")}
    assert {".jsonl", ".json", ".html", ".xml", ".svg"} <= kinds
    assert len(found) > 40
    assert all(found[name] for name in found if name.endswith((".svg", ".html", ".xml")))


def test_the_search_finds_the_marker_where_it_is(shared):
    _, folder = shared
    private = b"".join(path.read_bytes() for path in (folder.path / "private").iterdir())
    hidden = secrets(folder)
    assert sum(secret in private for secret in hidden) > 10
    page = b'<img src="data:image/png;base64,' + base64.b64encode(zlib.compress(MARKER.encode()))
    assert MARKER.encode() in unpacked(page + b'">')


def test_nothing_that_may_be_shared_holds_the_marker(shared):
    found, folder = shared
    hidden = secrets(folder)
    assert len(hidden) > 200
    for name, data in found.items():
        whole = unpacked(name.encode() + b"\n" + data)
        assert [secret for secret in hidden if secret in whole] == [], name


@pytest.mark.parametrize("raised", [RuntimeError, KeyError, ValueError, OSError, MemoryError])
def test_a_crash_in_the_middle_of_a_text_does_not_quote_it(tmp_path, monkeypatch, capsys, raised):
    """Libraries put what they were given into their messages."""

    def crash(self, *_, **__):
        raise raised(f"cannot read\n{MARKER}")

    monkeypatch.setattr("draftbench.measure.prompts.TargetText.prompt", crash)
    (tmp_path / "log.jsonl").write_text('{"prompt": "a"}\n')
    models = ["--target", str(EMBEDDED / "target"), "--drafts", "ngram"]
    words = [*models, "--traffic", str(tmp_path / "log.jsonl"), "--out", str(tmp_path / "run")]
    assert main(["sweep", *words]) in (2, 70)
    output = capsys.readouterr()
    assert "error: " in output.err
    assert "zebra" not in output.out + output.err
