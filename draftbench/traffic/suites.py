"""The built-in suites: `suites/NAME.yaml` describes `suites/NAME.jsonl`.

The folder is inside the package when installed and at the top of the repository in a checkout.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from draftbench.errors import TrafficError, did_you_mean
from draftbench.safe_files import UnreadableError, read_yaml

_PACKAGE = Path(__file__).parents[1]


class Suite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A suite: its `title` and `description`, and `file` with `requests` rows, whose segment is in
    the field `segment_by`; `language` and `license` are those of the texts.
    """

    name: str
    title: str
    description: str
    segment_by: str
    language: str
    license: str
    requests: int
    file: str


def suites() -> list[Suite]:
    """List the built-in suites by name."""
    return [_read(path) for path in sorted(_folder().glob("*.yaml"))]


def suite_names() -> list[str]:
    """List the names of the built-in suites without reading them."""
    return sorted(path.stem for path in _folder().glob("*.yaml"))


def find_suite(name: str) -> tuple[Suite, Path]:
    """Return a suite and the file with its rows.

    Raises:
        TrafficError: there is no such suite, or it is damaged.
    """
    paths = {path.stem: path for path in sorted(_folder().glob("*.yaml"))}
    if name not in paths:
        known = {f"suite:{stem}": None for stem in paths}
        hint = did_you_mean(f"suite:{name}", known, f"there are: {', '.join(paths)}", alike=0.8)
        raise TrafficError(f"suite `{name}` not found", hint=hint)
    suite = _read(paths[name])
    return suite, paths[name].with_name(Path(suite.file).name)


def _folder() -> Path:
    installed = _PACKAGE / "suites"
    return installed if installed.is_dir() else _PACKAGE.parent / "suites"


def _read(path: Path) -> Suite:
    try:
        return msgspec.convert(read_yaml(path), Suite)
    except (UnreadableError, msgspec.ValidationError) as error:
        raise TrafficError(
            f"suite `{path.name}` cannot be read: {error}", hint="install draftbench again"
        ) from error
