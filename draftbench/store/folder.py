"""A run folder: raw observations appended as they are made, read back strictly.

    run.json                  the question, the traffic's facts, the environment
    observations/KIND.jsonl   one record a line, appended and synced; safe to share private/
    prompts and responses as token ids (mode 0700); may be deleted, no figure needs it

A line that a kill cut short has no newline at its end and is dropped. A lock keeps a second writer
out and dies with its process. Knows files and records; what they mean is computed elsewhere.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from draftbench.errors import RunFolderError
from draftbench.records import AnyObservation, Observation, Record
from draftbench.store.manifest import SCHEMA_VERSION, Manifest, differing_fields

MAX_LINE_BYTES = 64 << 20
MANIFEST = "run.json"
KINDS = ("trajectory", "replay", "lookupreplay", "decode", "costpoint", "modelfacts", "failure")

R = TypeVar("R", bound=Record)


class PrivateText(Record, frozen=True):
    """One trajectory's tokens (whoever has the tokenizer can read them) and, above temperature 0,
    their log-probabilities and the sum expected.
    """

    request: str
    sample: int
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    log_p: tuple[float, ...]
    expected_log_p: float | None = None


class RunFolder:
    """An existing run folder, for reading; `writer` opens it for appending."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = self._read_manifest()

    @classmethod
    def create(cls, path: Path, manifest: Manifest) -> RunFolder:
        """Make the folder with its manifest, or open the one that asked the same question.

        Raises:
            RunFolderError: the folder answers another question, holds something else, or cannot be
            written.
        """
        if (path / MANIFEST).exists():
            folder = cls(path)
            changed = differing_fields(folder.manifest.question, manifest.question)
            if changed:
                raise RunFolderError(
                    f"`{path}` holds a run of another question ({', '.join(changed)} differ)",
                    hint="take another --out, or repeat the command that began this run",
                )
            return folder
        if path.exists() and any(path.iterdir()):
            raise RunFolderError(
                f"`{path}` exists and is not a run folder",
                hint="take an empty or a new folder for --out",
            )
        try:
            (path / "observations").mkdir(parents=True)
            (path / "private").mkdir(mode=0o700)
            temporary = path / (MANIFEST + ".tmp")
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2))
            temporary.replace(path / MANIFEST)
        except OSError as error:
            raise _cannot_write(path, error) from error
        return cls(path)

    def _read_manifest(self) -> Manifest:
        path = self.path / MANIFEST
        if not self.path.is_dir() or not path.exists():
            raise RunFolderError(
                f"`{self.path}` is not a run folder (no {MANIFEST})",
                hint="`draftbench sweep` makes run folders, by default under results/runs/",
            )
        raw = path.read_bytes()
        try:
            version = msgspec.json.decode(raw, type=dict[str, object]).get("schema_version")
            if isinstance(version, int) and version > SCHEMA_VERSION:
                raise RunFolderError(
                    f"`{path}` has schema {version}, this draftbench reads {SCHEMA_VERSION}",
                    hint="update draftbench",
                )
            return msgspec.json.decode(raw, type=Manifest)
        except (msgspec.DecodeError, RecursionError) as error:
            raise RunFolderError(
                f"`{path}`: {error}", hint="the file was changed or cut"
            ) from error

    def observations(self) -> list[AnyObservation]:
        """All observations, by kind, in the order in which they were made."""
        return [record for kind in KINDS for record in self._read(kind)]

    def _read(self, kind: str) -> Iterator[AnyObservation]:
        path = self.path / "observations" / f"{kind}.jsonl"
        return _read_lines(path, AnyObservation)  # type: ignore[arg-type,return-value]

    def private_texts(self) -> Iterator[PrivateText]:
        """Prompts and responses as token ids; empty where the private part was deleted."""
        return _read_lines(self.path / "private" / "texts.jsonl", PrivateText)

    def writer(self) -> RunWriter:
        """Lock the folder and append to it."""
        return RunWriter(self.path)


class RunWriter:
    """Appends to a run folder; one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._lock = (path / ".lock").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunFolderError(
                f"another draftbench writes to `{path}`", hint="wait for it, or take another --out"
            ) from error
        except OSError as error:
            raise _cannot_write(path, error) from error

    def append(self, records: Iterable[Observation]) -> None:
        """Append and sync; records of one call become visible together per kind."""
        by_kind: dict[str, list[Observation]] = {}
        for record in records:
            by_kind.setdefault(type(record).__name__.lower(), []).append(record)
        for kind, group in by_kind.items():
            self._append_lines(self.path / "observations" / f"{kind}.jsonl", group)

    def append_private(self, text: PrivateText) -> None:
        """Keep one trajectory's tokens."""
        self._append_lines(self.path / "private" / "texts.jsonl", [text])

    def _append_lines(self, path: Path, records: Iterable[Record]) -> None:
        data = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
        try:
            with path.open("r+b" if path.exists() else "w+b") as stream:
                whole = _whole_length(stream.fileno())
                os.ftruncate(stream.fileno(), whole)
                stream.seek(whole)
                try:
                    stream.write(data)
                    stream.flush()
                except OSError:
                    os.ftruncate(stream.fileno(), whole)
                    raise
                os.fsync(stream.fileno())
        except OSError as error:
            raise _cannot_write(path, error) from error

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()


def _whole_length(descriptor: int) -> int:
    """Bytes up to and including the last newline; a torn record behind it does not count."""
    end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - 65536)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _read_lines(path: Path, kind: type[R]) -> Iterator[R]:
    if not path.exists():
        return
    decoder = msgspec.json.Decoder(kind)
    with path.open("rb") as stream:
        number = 0
        while line := stream.readline(MAX_LINE_BYTES):
            number += 1
            if not line.endswith(b"\n"):
                if len(line) == MAX_LINE_BYTES:
                    raise RunFolderError(
                        f"`{path}` line {number} is too long", hint="not a run's file"
                    )
                return
            try:
                yield decoder.decode(line)
            except (msgspec.DecodeError, RecursionError) as error:
                raise RunFolderError(
                    f"`{path}` line {number}: {error}",
                    hint="the file was changed by something else",
                ) from error


def _cannot_write(path: Path, error: OSError) -> RunFolderError:
    hints = {
        errno.ENOSPC: "free some space and repeat the command; what was measured is kept",
        errno.EROFS: "the file system is read-only; take another --out",
        errno.EACCES: "you may not write there; take another --out",
    }
    return RunFolderError(
        f"cannot write to `{path}`: {error.strerror}",
        hint=hints.get(error.errno or 0, "repeat the command when the folder can be written again"),
    )
