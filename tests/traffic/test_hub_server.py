"""Data sets through the real libraries, from a hub that is a server of this test: what it is asked,
and that all of a data set comes from one commit. In a process of its own, since the libraries read
where their hub is when they are imported.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.slow

OLD, NEW = "a" * 40, "b" * 40
FILES = {
    OLD: {"README.md": b"# old\n", "train.jsonl": b'{"prompt": "old"}\n'},
    NEW: {"README.md": b"# new\n", "train.jsonl": b'{"prompt": "new"}\n'},
}
PROGRAM = """
import json, sys
from draftbench.errors import DraftbenchError
from draftbench.traffic import TrafficQuery, load
for source in sys.argv[1:]:
    try:
        found = load(TrafficQuery(source, b"key"))
        print(json.dumps([[request.prompt for request in found.requests], found.revision]))
    except DraftbenchError as error:
        print(json.dumps([error.message, error.hint]))
"""


class Hub(ThreadingHTTPServer):
    """One data set, `org/name`. The branch `main` moves on once its name was asked for; `v1` is the
    old commit.
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answers)
        self.files = {commit: dict(files) for commit, files in FILES.items()}
        self.asked: list[str] = []
        self.main = OLD

    def commit(self, revision):
        if revision == "main":
            named, self.main = self.main, NEW
            return named
        return OLD if revision == "v1" else revision if revision in self.files else None


class Answers(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_):
        """Nothing is printed."""

    def do_GET(self):
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        self.server.asked.append(f"{self.command} {'/'.join(parts)}")
        if parts[:4] == ["api", "datasets", "org", "name"]:
            self.api(parts[4:])
        elif parts[:3] == ["datasets", "org", "name"] and parts[3] == "resolve":
            self.file(parts[4], "/".join(parts[5:]))
        else:
            self.give(404, b"{}", **{"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_POST = do_GET  # noqa: N815

    def api(self, parts):
        asked = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        what, revision = (parts or ["revision", "main"])[:2]
        commit = self.server.commit(revision)
        if commit is None:
            return self.give(404, b"{}", **{"X-Error-Code": "RevisionNotFound"})
        entries = [
            {"type": "file", "path": name, "size": len(data), "oid": oid(data)}
            for name, data in self.server.files[commit].items()
            if what == "tree" or name in asked
        ]
        described = {"id": "org/name", "sha": commit, "siblings": [], "tags": [], "private": False}
        answer = described if what == "revision" else entries
        return self.give(200, json.dumps(answer).encode())

    def file(self, revision, name):
        commit = self.server.commit(revision)
        if commit is None:
            return self.give(404, b"", **{"X-Error-Code": "RevisionNotFound"})
        data = self.server.files[commit].get(name)
        if data is None:
            headers = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}
            return self.give(404, b"", **headers)
        return self.give(200, data, **{"X-Repo-Commit": commit, "ETag": f'"{oid(data)}"'})

    def give(self, code, data, **headers):
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def oid(data):
    return hashlib.sha1(data).hexdigest()


@pytest.fixture
def hub():
    with Hub() as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        yield hub
        hub.shutdown()


def read(hub, home, *sources, **environment):
    """What each source gives: prompts and commit, or message and hint."""
    address = f"http://127.0.0.1:{hub.server_port if hub else 9}"
    own = {"HF_ENDPOINT": address, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-c", PROGRAM, *sources]
    done = subprocess.run(
        command, env={**os.environ, **own, **environment}, capture_output=True, text=True, cwd=home
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_data_set_is_read_at_one_commit_while_its_branch_moves_on(hub, tmp_path):
    (found,) = read(hub, tmp_path, "hf:org/name")
    assert found == [["old"], OLD]
    assert hub.main == NEW
    fetched = [words for words in hub.asked if "train.jsonl" in words and "resolve" in words]
    assert fetched
    assert all(OLD in words for words in fetched)


def test_a_branch_a_tag_and_a_commit_are_read_as_what_they_name(hub, tmp_path):
    hub.main = NEW
    names = ("hf:org/name:train", "hf:org/name:train@v1", f"hf:org/name@{OLD}")
    assert read(hub, tmp_path, *names) == [[["new"], NEW], [["old"], OLD], [["old"], OLD]]


def test_what_the_hub_does_not_have_is_refused_in_words(hub, tmp_path):
    for message, hint in read(hub, tmp_path, "hf:org/other", "hf:org/name@v2", "hf:org/name:test"):
        assert "cannot be read" in str(message)
        assert "hf:DATASET" in str(hint)


def test_a_hub_that_cannot_be_reached_is_asked_once_and_refused_in_words(tmp_path):
    began = time.monotonic()
    ((message, hint),) = read(None, tmp_path, "hf:org/name")
    assert time.monotonic() - began < 20  # the libraries alone try for longer
    assert "data set `org/name` cannot be read" in str(message)
    assert "network" in str(hint)


def test_what_was_fetched_is_read_again_without_its_hub_or_a_network(hub, tmp_path):
    read(hub, tmp_path, "hf:org/name")
    assert read(None, tmp_path, "hf:org/name") == [[["old"], OLD]]
    again = read(None, tmp_path, "hf:org/name", "hf:org/name@v1", HF_HUB_OFFLINE="1")
    assert again[0] == [["old"], OLD]
    assert f"cached is {OLD}" in str(again[1][0])


@pytest.mark.parametrize("named", ["/{home}/secret.jsonl", "http://127.0.0.1:{port}/secret.jsonl"])
def test_a_data_set_cannot_name_files_outside_of_itself(hub, tmp_path, named):
    (tmp_path / "secret.jsonl").write_text('{"prompt": "zebra"}\n')
    file = named.format(home=str(tmp_path).lstrip("/"), port=hub.server_port)
    metadata = f'---\nconfigs:\n- config_name: default\n  data_files: "{file}"\n---\n'
    hub.files[OLD]["README.md"] = metadata.encode()
    ((message, hint),) = read(hub, tmp_path, "hf:org/name")
    assert "zebra" not in str(message)
    assert "is outside of it" in str(message) or "cannot be read" in str(message)
    assert hint
