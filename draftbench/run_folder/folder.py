"""A run folder: observations are appended as they are made, and read back strictly.

    run.json                  the question, the traffic's facts, the environment
    observations/KIND.jsonl   one append a line, synced; safe to share
    private/                  prompts and responses as token ids (mode 0700); may be deleted, no
                              figure needs it

A kill at any moment loses at most the append that it interrupts. A lock, which ends with its
process, keeps a second writer out.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar, get_args

import msgspec
from msgspec import Raw

from draftbench.errors import RunFolderError
from draftbench.records import (
    Amount,
    AnyObservation,
    Candidate,
    Confidences,
    Count,
    Numbers,
    OfResponse,
    Probability,
    Record,
    Replay,
    numbers,
    to_json,
)
from draftbench.run_folder.append_log import (
    append_line,
    cannot_write,
    new_digest,
    read_lines,
    seal_of,
)
from draftbench.run_folder.manifest import (
    SCHEMA_VERSION,
    Manifest,
    Seal,
    difference_lines,
    differing_environment,
    differing_question,
    refuse_other_schema,
)
from draftbench.safe_files import (
    UnreadableError,
    json_without_controls,
    read_limited,
    sync_folder,
    write_whole,
)

MAX_MANIFEST_BYTES = 4 << 20
MANIFEST, TEMPORARY, LOCK, PRIVATE = "run.json", "run.json.tmp", ".lock", "private"
_PARTS = {"observations", PRIVATE, TEMPORARY, LOCK}  # of a folder that was begun
TEXTS, STARTS = "texts.jsonl", "starts.jsonl"
# All settings of a sweep whose recorded command hides some of them.
SETTINGS = "sweep.yaml"
# What stands in a command for a value that it hides, or for all of them.
_HIDES = ("…", "***", f"{PRIVATE}/{SETTINGS}")

R = TypeVar("R", bound=Record)


class PrivateText(OfResponse, frozen=True):
    """One trajectory's tokens, which anyone with the tokenizer can read, and above temperature 0
    their log-probabilities.
    """

    prompt: tuple[int, ...]  # token ids
    tokens: tuple[int, ...]
    log_p: tuple[float, ...]  # of each token, above temperature 0
    expected_log_p: float | None = None  # expected sum of `log_p` under the target


class PrivateStart(Record, frozen=True):
    """The whole command line that started a server."""

    server: str  # id of the start
    command: str  # with its secrets


class UnreadReplay(Replay, frozen=True, tag="replay"):
    """A replay whose longest lists stay JSON until somebody asks for them: a run of ten thousand
    requests holds a hundred million numbers, and most figures need none of these.
    """

    confidence: Raw  # type: ignore[assignment]
    margin: Raw  # type: ignore[assignment]
    rank: Raw  # type: ignore[assignment]
    confidence_of_ten: Raw = Raw(b"[]")  # type: ignore[assignment]
    off_path: Raw = Raw(b"null")  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.check_acceptance()


class _Unread:
    """A field that is decoded when it is first asked for: a list of numbers or, without a type of
    these, what is drafted off the path.
    """

    def __init__(self, name: str, typecode: str = "", number: Any = None) -> None:
        self._slot, self._name, self._typecode = Replay.__dict__[name], name, typecode
        self._decoder: Any = msgspec.json.Decoder(list[number] if number else Confidences | None)

    def __get__(self, replay: UnreadReplay, owner: object = None) -> Numbers | Confidences | None:
        found = self._slot.__get__(replay)
        if isinstance(found, Raw):
            try:
                found = self._decoder.decode(found)
                if self._typecode:
                    found = numbers(self._typecode, found)
                    if len(found) not in (0, len(replay.accept)):
                        raise msgspec.DecodeError(f"{len(found)} entries, not {len(replay.accept)}")
                else:
                    replay.check_runs(found)
            except (msgspec.DecodeError, ValueError) as error:
                raise RunFolderError(
                    f"`{self._name}` in the replay of request `{replay.request}`: {error}",
                    hint="the file was changed by something else",
                ) from error
            self._slot.__set__(replay, found)
        return found


for _field in (
    ("confidence", "d", Amount),
    ("margin", "d", Amount),
    ("rank", "q", Count),
    ("confidence_of_ten", "d", Probability),
    ("off_path",),
):
    setattr(UnreadReplay, _field[0], _Unread(*_field))


class RunFolder:
    """An existing run folder, for reading; `writer` opens it for appending."""

    def __init__(self, path: Path) -> None:
        self.path, manifest = path, path / MANIFEST
        if not path.exists():
            raise RunFolderError(
                f"no run folder at `{path}`",
                hint="`draftbench runs list [FOLDER]` shows those of a folder (default: "
                "results/runs)",
            )
        if not manifest.is_file() or manifest.is_symlink():
            raise RunFolderError(
                f"`{path}` is not a run folder (no {MANIFEST})",
                hint="`draftbench sweep` makes run folders, by default under results/runs/",
            )
        try:
            raw = json_without_controls(read_limited(manifest, MAX_MANIFEST_BYTES))
            older = "sweep again, with another --out"
            refuse_other_schema(raw, SCHEMA_VERSION, f"`{manifest}`", older)
            self.manifest = msgspec.json.decode(raw, type=Manifest)
        except UnreadableError as error:
            raise RunFolderError(
                f"cannot read `{manifest}`: {error}", hint="check who may read it, and what it is"
            ) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RunFolderError(
                f"`{manifest}`: {error}", hint="the file was changed or cut"
            ) from error

    @staticmethod
    def check_place(path: Path) -> None:
        """Raise a RunFolderError if no run can be begun or continued there; to find out, missing
        folders are made and removed again.
        """
        hint = "take an empty or a new folder for --out"
        if path.exists() and not path.is_dir():
            raise RunFolderError(f"`{path}` is a file, and --out names a folder", hint=hint)
        begun = (path / MANIFEST).exists() or not path.exists()
        if not begun and {entry.name for entry in path.iterdir()} - _PARTS:
            raise RunFolderError(f"`{path}` exists and is not a run folder", hint=hint)
        made = [folder for folder in (path, *path.parents) if not folder.exists()]
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(path, error) from error
        finally:
            for folder in made:
                with contextlib.suppress(OSError):
                    folder.rmdir()

    @staticmethod
    def holds(path: Path) -> bool:
        """Whether a path is one of a run's own files, or would be."""
        path = path.resolve()
        return any(
            path.relative_to(folder).parts[0] in {MANIFEST, *_PARTS}
            for folder in path.parents
            if (folder / MANIFEST).is_file()
        )

    @classmethod
    def create(cls, path: Path, manifest: Manifest) -> RunFolder:
        """Make a folder for this run, or open the one that holds its beginning.

        Raises:
            RunFolderError: the folder holds another question or environment, was redacted, is no
                run folder of today's layout, or cannot be written.
        """
        if not (path / MANIFEST).exists():
            try:
                cls.check_place(path)
                path.mkdir(parents=True, exist_ok=True)
                with RunWriter(path):
                    if not (path / MANIFEST).exists():  # or another process was faster
                        (path / "observations").mkdir(exist_ok=True)
                        (path / PRIVATE).mkdir(mode=0o700, exist_ok=True)
                        # Last: where a kill left none, the folder can be begun again.
                        _write_manifest(path, manifest)
            except OSError as error:
                raise cannot_write(path, error) from error
        folder = cls(path)
        existing = folder.manifest
        # Replays with confidences, by which rounds may stop, and without can stand in one run.
        asked = differing_question(existing, manifest)
        question = difference_lines({name: of for name, of in asked.items() if name != "stop"})
        environment = difference_lines(differing_environment(existing, manifest))
        again = command_of(existing, path)
        for refused, why, hint in (
            (
                question,
                f"holds a run with other settings ({'; '.join(question)})",
                f"take another --out{f'; this run is resumed by: {again}' if again else ''}",
            ),
            (
                environment,
                f"was begun in another environment ({', '.join(environment)})",
                "one run cannot mix both; take another --out, or go back to the first",
            ),
            (
                folder.redacted,
                "was redacted: the texts to continue with were deleted",
                "its figures can be read as before; to measure more, take another --out",
            ),
        ):
            if refused:
                raise RunFolderError(f"`{path}` {why}", hint=hint)
        return folder

    def note_sweep(self, manifest: Manifest, under_way: tuple[Candidate, ...] | None) -> None:
        """Write the head again: the command and effort of the last sweep, and the candidates under
        way; None: it has ended, and the observations are sealed. Only for the holder of the writer.

        Raises:
            RunFolderError: it cannot be written.
        """
        sealed = None
        if under_way is None:
            files = [_file(self.path, kind) for kind in get_args(AnyObservation)]
            sealed = {file.name: seal for file in files if (seal := seal_of(file)).records}
        noted = msgspec.structs.replace(
            self.manifest,
            command=manifest.command,
            effort=manifest.effort,
            specs=manifest.specs,
            under_way=under_way,
            sealed=sealed,
        )
        try:
            _write_manifest(self.path, noted)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self.manifest = noted

    def keep_settings(self, text: str) -> None:
        """Keep all settings of a sweep whose command hides some, in the private part.

        Raises:
            RunFolderError: they cannot be written.
        """
        file = self.path / PRIVATE / SETTINGS
        try:
            write_whole(file, text.encode())
        except OSError as error:
            raise cannot_write(file, error) from error

    @property
    def redacted(self) -> bool:
        """Whether the private part was deleted."""
        return not (self.path / PRIVATE).is_dir()

    def observations(self, *, resumes: bool = False) -> list[AnyObservation]:
        """All observations, by kind, in the order in which they were made.

        Raises:
            RunFolderError: they cannot be read, or are not those that the last sweep ended with; a
                sweep that `resumes` measures missing ones again.
        """
        found, sealed = list[AnyObservation](), self.manifest.sealed
        for kind in get_args(AnyObservation):
            file, digest = _file(self.path, kind), new_digest()
            unread = sealed is not None and kind is Replay
            found += read_lines(file, UnreadReplay if unread else kind, digest)
            wrote = None if sealed is None else sealed.get(file.name, Seal())
            if wrote is None or digest.hexdigest() == wrote.digest:
                continue
            held = seal_of(file)
            missing = held.records < wrote.records
            if held == wrote or (missing and resumes):
                continue
            what = "was changed after the sweep ended"
            hint = "copy the whole run folder again, or sweep again with another --out"
            if missing:
                what = f"holds {held.records} of the {wrote.records} records that the sweep wrote"
                hint = (
                    "copy the whole run folder again; or repeat the command that made it, which "
                    "measures again what is missing"
                )
            raise RunFolderError(f"`{file}` {what}", hint=hint)
        return found

    def records(self, kind: type[R]) -> Iterator[R]:
        """All records of one kind, in the order in which they were made; none of a private kind if
        the private part was deleted.
        """
        return read_lines(_file(self.path, kind), kind)

    def writer(self) -> RunWriter:
        return RunWriter(self.path)

    def redact(self) -> None:
        """Delete the private part; every figure stays.

        Raises:
            RunFolderError: a sweep writes to the run, or it cannot be deleted.
        """
        with self.writer():
            try:
                if not self.redacted:
                    shutil.rmtree(_no_link(self.path / PRIVATE))
                    sync_folder(self.path)
            except OSError as error:
                raise cannot_write(self.path / PRIVATE, error) from error


def command_of(manifest: Manifest, path: Path) -> str | None:
    """The command that makes a run, as it can be pasted: what it hides is in the private part. None
    if that was deleted.
    """
    settings = path / PRIVATE / SETTINGS
    if settings.is_file():
        return shlex.join(["draftbench", "sweep", str(settings), "--out", str(path)])
    return None if hides_values(manifest.command) else manifest.command


def hides_values(command: str) -> bool:
    """Whether a recorded command cannot be pasted as it is."""
    return any(sign in command for sign in _HIDES)


class FolderLock:
    """Lets one process at a time write to a folder. A context manager that releases the lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._lock = os.open(path / LOCK, flags, 0o644)
        except OSError as error:
            raise cannot_write(path, error) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            if not isinstance(error, BlockingIOError):
                raise cannot_write(path, error) from error
            raise RunFolderError(
                f"another draftbench writes to `{path}`", hint="wait for it, or take another --out"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)


class RunWriter(FolderLock):
    """Appends to a run folder, for one process at a time."""

    def append(self, records: Iterable[Record]) -> None:
        """Append records and sync them to disk; those of one kind in one call are kept all or none,
        those of a private kind in the private part.
        """
        by_kind: dict[type[Record], list[Record]] = {}
        for record in records:
            by_kind.setdefault(type(record), []).append(record)
        for kind, group in by_kind.items():
            append_line(_file(self.path, kind), group)


def _write_manifest(path: Path, manifest: Manifest) -> None:
    write_whole(path / MANIFEST, to_json(manifest).encode(), path / TEMPORARY)


def _file(path: Path, kind: type[Record]) -> Path:
    private = {PrivateText: TEXTS, PrivateStart: STARTS}
    if kind in private:
        return _no_link(path / PRIVATE) / private[kind]
    return _no_link(path / "observations") / f"{kind.__name__.lower()}.jsonl"


def _no_link(path: Path) -> Path:
    if path.is_symlink():
        raise RunFolderError(
            f"`{path}` is a link", hint="a run folder holds no links; do not use this one"
        )
    return path
