"""A run folder answers one question, has one writer, and survives whatever interrupts it; the
longest lists of its replays stay JSON until they are asked for.
"""

import os
import re
import shutil
import signal
import stat
import subprocess
import sys

import msgspec
import pytest
from msgspec import Raw
from scenes import SMALL, failure, manifest, named, private_text, replay, trajectory

from draftbench.errors import RunFolderError
from draftbench.records import Confidences, Replay
from draftbench.run_folder.folder import PrivateText, RunFolder, RunWriter, UnreadReplay
from draftbench.run_folder.manifest import portable


def test_what_was_appended_is_read_back_in_order_by_kind(folder):
    made = [trajectory("b"), failure("draft", "slow"), trajectory("a")]
    with folder.writer() as writer:
        for record in made:
            writer.append([record])
        writer.append([private_text("b")])
    assert folder.observations() == [made[0], made[2], made[1]]
    assert list(folder.records(PrivateText)) == [private_text("b")]
    assert stat.S_IMODE((folder.path / "private").stat().st_mode) == 0o700  # for the owner alone


def test_the_same_question_opens_the_folder_again(folder):
    again = RunFolder.create(folder.path, manifest(created="later", command="other words"))
    assert again.manifest.created == "2026-01-01T00:00:00Z"


def test_what_was_asked_last_is_kept_once_a_sweep_begins_and_not_when_it_is_refused(folder):
    asked = manifest(command="other words", specs={"small": "./small"})
    again = RunFolder.create(folder.path, asked)
    assert RunFolder(folder.path).manifest == folder.manifest
    with again.writer():
        again.note_sweep(asked, (SMALL,))
    kept = RunFolder(folder.path).manifest
    assert (kept.command, kept.under_way) == ("other words", (SMALL,))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ks": (1, 2, 3)}, "other settings (--k: 1, 2 → 1, 2, 3)"),
        ({"temperature": 0.5, "drafts": ()}, "(--drafts: small → none; --temperature: none → 0.5)"),
        (
            {"key_id": "k", "traffic_digest": "e"},
            "(key of the hashes: key → k; other requests: another traffic, --sample or seed)",
        ),
        ({"threads": 2}, "another environment (threads: 1 → 2)"),
        ({"packages": {"torch": "2.13"}}, "another environment (torch: 2.12 → 2.13)"),
        ({"packages": {}}, "torch: 2.12 → none"),
        ({"draftbench": "0.2.0"}, "draftbench: 0.1.0 → 0.2.0"),
        ({"accelerator": "GPU"}, "accelerator: none → GPU"),
    ],
)
def test_another_question_machine_or_library_is_refused_with_what_differs(folder, changes, words):
    with pytest.raises(RunFolderError, match=re.escape(words)):
        RunFolder.create(folder.path, manifest(**changes))


def test_what_is_something_else_is_left_alone(tmp_path):
    letter, words = tmp_path / "thesis.tex", "years of work"
    letter.write_text(words)
    for place, said in (
        (tmp_path, "is not a run folder"),
        (letter, "is a file, and --out names a folder"),
    ):
        with pytest.raises(RunFolderError, match=said) as caught:
            RunFolder.create(place, manifest())
        assert "a new folder" in caught.value.hint
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]
    assert letter.read_text() == words


@pytest.mark.parametrize("made", range(5))
def test_a_folder_killed_while_it_was_made_can_be_begun_again(tmp_path, made):
    whole = RunFolder.create(tmp_path / "whole", manifest()).path
    (whole / "run.json").rename(whole / "run.json.tmp")
    cut = tmp_path / "cut"
    cut.mkdir()
    for name in (".lock", "observations", "private", "run.json.tmp")[:made]:
        if (whole / name).is_dir():
            (cut / name).mkdir()
        else:
            (cut / name).write_bytes((whole / name).read_bytes()[:10])
    assert RunFolder.create(cut, manifest()).observations() == []


def test_a_second_writer_is_kept_out_until_the_first_closes_or_dies(folder):
    program = (
        "import sys; from pathlib import Path; from draftbench.run_folder.folder import RunWriter\n"
        "held = RunWriter(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(folder.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(RunFolderError, match="another draftbench writes"):
            RunWriter(folder.path)
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        for _ in range(2):
            with RunWriter(folder.path):
                pass


@pytest.mark.parametrize(
    ("version", "said", "hint"),
    [(99, "99, newer", "update draftbench"), (5, "5, older", "sweep again, with another --out")],
)
def test_a_run_of_another_layout_is_refused_with_what_to_do(folder, version, said, hint):
    (folder.path / "run.json").write_bytes(msgspec.json.encode({"schema_version": version}))
    for use in (RunFolder, lambda path: RunFolder.create(path, manifest())):
        with pytest.raises(RunFolderError, match=rf"schema {said} than .* reads \(6\)") as caught:
            use(folder.path)
        assert caught.value.hint == hint


def test_a_manifest_cut_anywhere_or_of_other_bytes_is_refused(folder):
    path = folder.path / "run.json"
    whole = path.read_bytes()
    others = (b'"\xff"', b'"\x1b"', b'"\\ud800"', b"[" * 100_000)
    for content in (
        *(whole[:cut] for cut in range(len(whole))),
        *(whole.replace(b'"draftbench sweep"', value) for value in others),
    ):
        path.write_bytes(content)
        with pytest.raises(RunFolderError, match=r"run\.json"):
            RunFolder(folder.path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("ks", ks) for ks in ((), (0,), (1, -1), (65,), (10**9,))],
        *[("concurrency", concurrency) for concurrency in ((), (0,), (4097,))],
        *[("samples", 0), ("samples", -1), ("samples", 10**6 + 1)],
        *[("max_new_tokens", 0), ("max_new_tokens", 10**9 + 1), ("temperature", -0.1)],
        *[("temperature", 1e300), ("lookup_longest", 0), ("lookup_shortest", -1)],
        *[("dtype", "float8"), ("responses", "nobody's")],
        *[("rows", -1), ("requests", 10**16), ("merged", -1), ("dropped", {"bad row": -1})],
        *[("cores", 0), ("threads", -1), ("load", -0.1), ("load", 1e300)],
    ],
)
def test_a_manifest_that_no_sweep_writes_is_refused_by_its_key(folder, key, value):
    (folder.path / "run.json").write_bytes(msgspec.json.encode(manifest(**{key: value})))
    with pytest.raises(RunFolderError, match=rf"`\$.*\.{key}\b") as caught:
        RunFolder(folder.path)
    assert caught.value.hint


def test_a_manifest_at_its_limits_is_read(folder):
    asked = manifest(
        ks=(1, 64),
        concurrency=(1, 4096),
        samples=1,
        temperature=0.0,
        max_new_tokens=10**9,
        rows=0,
        dropped={},
        load=0.0,
        specs={"small": "./small"},
    )
    (folder.path / "run.json").write_bytes(msgspec.json.encode(asked))
    assert RunFolder(folder.path).manifest == asked


def test_a_part_that_is_a_link_is_not_entered(tmp_path, folder):
    outside = tmp_path / "outside"
    outside.mkdir()
    for part in ("observations", "private"):
        shutil.rmtree(folder.path / part)
        (folder.path / part).symlink_to(outside)
    with folder.writer() as writer:
        with pytest.raises(RunFolderError, match="is a link"):
            writer.append([trajectory("a")])
        with pytest.raises(RunFolderError, match="is a link"):
            writer.append([private_text("a")])
    (outside / "letter").write_text("keep me")
    for use in (folder.observations, folder.redact):
        with pytest.raises(RunFolderError, match="is a link"):
            use()
    assert [entry.name for entry in outside.iterdir()] == ["letter"]


def test_redacting_deletes_the_texts_alone_and_ends_the_measuring(folder):
    with folder.writer() as writer:
        writer.append([trajectory("a")])
        writer.append([private_text("a")])
    folder.redact()
    folder.redact()
    assert folder.redacted
    assert folder.observations() == [trajectory("a")]
    assert list(folder.records(PrivateText)) == []
    with pytest.raises(RunFolderError, match="was redacted"):
        RunFolder.create(folder.path, manifest())


@pytest.fixture
def ended(folder):
    """A folder whose sweep ended with three responses, two of them in one append."""
    with folder.writer() as writer:
        writer.append([trajectory("a"), trajectory("b")])
        writer.append([trajectory("c"), private_text("c")])
        folder.note_sweep(folder.manifest, None)
    return folder.path


def line(request):
    return msgspec.json.encode(trajectory(request), enc_hook=list) + b"\n"


@pytest.mark.parametrize(
    ("left", "words"),
    [
        (
            lambda whole: whole[: whole.index(b"\n") + 1],
            "holds 2 of the 3 records that the sweep wrote",
        ),
        (lambda whole: whole[:-1], "holds 2 of the 3 records that the sweep wrote"),
        (lambda whole: b"", "holds 0 of the 3 records that the sweep wrote"),
        (
            lambda whole: whole.replace(b'"weight":1.0', b'"weight":2.0', 1),
            "was changed after the sweep ended",
        ),
        (lambda whole: line("a") + line("b") + line("c"), "was changed after the sweep ended"),
        (lambda whole: whole + line("d"), "was changed after the sweep ended"),
    ],
    ids=["fewer lines", "a cut line", "no line", "another value", "other lines", "more lines"],
)
def test_what_is_missing_or_was_changed_since_a_sweep_ended_is_refused(ended, left, words):
    path = ended / "observations" / "trajectory.jsonl"
    RunFolder(ended).redact()  # texts may be deleted
    RunFolder(ended).observations()
    path.write_bytes(left(path.read_bytes()))
    with pytest.raises(RunFolderError, match=rf"trajectory\.jsonl` {words}") as caught:
        RunFolder(ended).observations()
    assert caught.value.hint.startswith("copy the whole run folder again")


def test_a_file_that_is_gone_or_new_since_a_sweep_ended_is_refused(ended):
    path = ended / "observations" / "trajectory.jsonl"
    path.rename(ended / "elsewhere")
    with pytest.raises(RunFolderError, match="holds 0 of the 3 records"):
        RunFolder(ended).observations()
    RunFolder(ended).observations(resumes=True)  # it will measure them again
    (ended / "elsewhere").rename(path)
    (ended / "observations" / "failure.jsonl").write_bytes(
        msgspec.json.encode(failure("small", "slow")) + b"\n"
    )
    with pytest.raises(RunFolderError, match=r"failure\.jsonl` was changed after the sweep ended"):
        RunFolder(ended).observations(resumes=True)


def test_a_run_in_which_a_sweep_is_under_way_is_read_as_far_as_it_is_written(ended):
    folder = RunFolder(ended)
    with folder.writer() as writer:
        folder.note_sweep(folder.manifest, (SMALL,))
        writer.append([trajectory("d")])
    RunFolder(ended).observations()
    path = ended / "observations" / "trajectory.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    RunFolder(ended).observations()


def test_a_run_that_is_being_written_is_not_redacted(folder):
    with folder.writer(), pytest.raises(RunFolderError, match="another draftbench writes"):
        folder.redact()
    assert not folder.redacted


def test_the_home_directory_does_not_show_in_what_may_be_shared(monkeypatch):
    monkeypatch.setenv("HOME", "/home/alice")
    shared = portable("draftbench sweep --target /home/alice/models/t --drafts /data/d")
    assert shared == "draftbench sweep --target ~/models/t --drafts /data/d"


RUNS = Confidences(lengths=(1, 2), of_all=(0.5, 0.25, 0.125), of_ten=(1.0, 0.5, 0.25))
MADE = replay(
    (1.0, 0.0),
    named("d"),
    confidence=(0.5, 0.25),
    margin=(3.0, 0.0),
    rank=(0, 7),
    confidence_of_ten=(0.75, 0.5),
    off_path=RUNS,
)
WRITTEN = msgspec.json.encode(MADE, enc_hook=list)
LISTS = ("confidence", "margin", "rank", "confidence_of_ten", "off_path")


def read(written):
    return msgspec.json.decode(written, type=UnreadReplay)


def test_a_list_is_decoded_when_it_is_asked_for_and_is_what_was_written():
    slots = {name: Replay.__dict__[name] for name in LISTS}
    found = read(WRITTEN)
    assert all(isinstance(slot.__get__(found), Raw) for slot in slots.values())
    assert [getattr(found, name) for name in LISTS] == [getattr(MADE, name) for name in LISTS]
    assert not any(isinstance(slot.__get__(found), Raw) for slot in slots.values())
    assert msgspec.json.encode(found, enc_hook=list) == WRITTEN


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rank", b"[0,-7]"),
        ("rank", b"[0,7,7]"),
        ("margin", b'["a",0.0]'),
        ("margin", b"7"),
        ("confidence_of_ten", b"[0.5,1.5]"),
        ("off_path", b'{"lengths":[2],"of_all":[0.5],"of_ten":[0.5]}'),
        # A run for the wrong token, and one after the end.
        ("off_path", b'{"lengths":[1],"of_all":[0.5],"of_ten":[0.5]}'),
    ],
)
def test_numbers_that_no_sweep_writes_are_refused_by_the_name_of_the_request(name, value):
    asked = msgspec.json.decode(WRITTEN)[name]
    written = f'"{name}":{msgspec.json.encode(asked).decode()}'.encode()
    found = read(WRITTEN.replace(written, f'"{name}":'.encode() + value))
    with pytest.raises(RunFolderError, match=f"`{name}` in the replay of request `{MADE.request}`"):
        getattr(found, name)


def test_acceptance_is_checked_as_it_is_read():
    with pytest.raises(msgspec.ValidationError, match="drafting was greedy"):
        read(WRITTEN.replace(b"[1.0,0.0]", b"[1.0,0.5]"))
