"""A run on a file system of 128 KiB: nothing is lost when it fills, and with room it is resumed."""

import shutil
import subprocess
import sys
import textwrap

import msgspec
import pytest
from scenes import MANIFEST

PROGRAM = """
import sys
from pathlib import Path
import msgspec
from draftbench.errors import RunFolderError
from draftbench.records import Candidate, Failure
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.manifest import Manifest

def record(number):
    return Failure(candidate=Candidate(draft=f"d{number}"), stage="s", reason="x" * 3000, hint="h")

disk = Path(sys.argv[1])
(disk / "ballast").write_bytes(b"x" * 32768)
manifest = msgspec.json.decode(Path(sys.argv[2]).read_bytes(), type=Manifest)
folder = RunFolder.create(disk / "run", manifest)
kept = []
with folder.writer() as writer:
    try:
        while True:
            writer.append([record(len(kept))])
            kept.append(record(len(kept)))
    except RunFolderError as error:
        print(error.message, "|", error.hint)
    assert RunFolder(disk / "run").observations() == kept and len(kept) > 10
    (disk / "ballast").unlink()
    writer.append([record(len(kept))])
assert len(RunFolder(disk / "run").observations()) == len(kept) + 1
print("resumed")
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs a mount of its own")
def test_a_full_disk_loses_nothing_and_the_run_is_resumed_with_room(tmp_path):
    manifest = tmp_path / "run.json"
    manifest.write_bytes(msgspec.json.encode(MANIFEST))
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    inside = f"mount -t tmpfs -o size=128k none {disk} && exec {sys.executable} "
    inside += f"{tmp_path / 'program.py'} {disk} {manifest}"
    done = subprocess.run(["unshare", "-rm", "sh", "-c", inside], capture_output=True, text=True)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip("may not mount")
    assert done.stdout, done.stderr
    first, *rest = done.stdout.splitlines()
    assert "No space left on device | free some space" in first, done.stderr
    assert rest == ["resumed"]
