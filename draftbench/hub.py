"""Names of models, which are paths or ids on the Hugging Face hub, and whether the hub answers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath

from draftbench.errors import ModelError, closest
from draftbench.flags import in_safety

SECONDS_TO_ANSWER = 10.0


@dataclass(frozen=True)
class Trust:
    """What the user allowed beyond plain weights; both can run code from the checkpoint."""

    remote_code: bool = in_safety(
        False,
        "Run Python code that comes with a checkpoint. It can do anything that you can.",
        names=("--trust-remote-code",),
    )
    pickle: bool = in_safety(
        False, "Load pickled weights. A malicious file can run code.", names=("--allow-pickle",)
    )


def names_model(spec: str) -> bool:
    """Whether this is `org/name` or `org/name@revision` and not a path."""
    path_like = spec.startswith((".", "/", "~")) or spec.endswith(".gguf")
    name = spec.partition("@")[0]
    if not spec or path_like or name.count("/") > 1 or ":" in name:
        return False
    return not exists(Path(spec))


def exists(path: Path) -> bool:
    """Whether a path exists; it may be too long for a path, or in a folder that may not be read."""
    try:
        return path.exists()
    except OSError:
        return False


def refuse_missing(spec: str) -> None:
    """Raise a ModelError if there is no model of this name, or another kind of file."""
    if names_model(spec):
        return
    path = Path(spec).expanduser()
    hint = "give a directory with config.json, a .gguf file, or a hub id like org/name"
    if not exists(path):
        if ":" in spec:
            hint += "; an engine's way to draft is eagle3:MODEL, dflash:MODEL or spec:FILE.json"
        raise ModelError(f"no model at `{spec}`", hint=or_beside(spec, hint))
    if path.is_file() and path.resolve().suffix != ".gguf":
        raise ModelError(f"`{spec}` is not a .gguf file", hint=hint)


def or_beside(spec: str, hint: str) -> str:
    """A hint that begins with the model beside a misspelt path whose name is the closest."""
    path = Path(spec).expanduser()
    try:
        beside = [each for each in path.parent.iterdir() if each.is_dir() or each.suffix == ".gguf"]
    except OSError:  # neither is its folder there
        return hint
    if near := closest(path.name, [each.name for each in beside]):
        return f"did you mean `{spec.rstrip('/').removesuffix(path.name)}{near}`? {hint}"
    return hint


def split_revision(spec: str) -> tuple[str, str | None]:
    """A hub id and its revision, which may contain slashes (`org/name@feature/x`); a path, which
    may contain an @, unchanged.
    """
    name, _, revision = spec.partition("@")
    return (name, revision) if revision and names_model(spec) else (spec, None)


def short_name(spec: str) -> str:
    """The last part of a path or hub id, without a file's ending or a pinned revision."""
    path = PurePath(split_revision(spec)[0])
    return path.stem if path.suffix == ".gguf" else path.name


@cache
def hub_answers() -> bool:
    """Whether the hub can be reached; tried once.

    If not, this process uses only cached files from now on: the libraries would try every file five
    times and print a warning for each.
    """
    from huggingface_hub import constants, get_session

    if not constants.is_offline_mode():
        try:
            get_session().head(constants.ENDPOINT, timeout=SECONDS_TO_ANSWER)
        # The HTTP client has many kinds of errors for a host that is not found.
        except Exception:
            constants.HF_HUB_OFFLINE = True
    return not constants.is_offline_mode()
