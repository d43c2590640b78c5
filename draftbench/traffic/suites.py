"""The built-in suites: `suites/NAME.yaml` describes `suites/NAME.jsonl`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from draftbench.errors import TrafficError, did_you_mean
from draftbench.safe_files import UnreadableError, read_yaml

_PACKAGE = Path(__file__).parents[1]
# Inside the package when installed, at the top of the repository in a checkout.
_PLACES = (_PACKAGE / "suites", _PACKAGE.parent / "suites")


class Suite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A suite's YAML file: its `title` and `description`, the `file` with `requests` rows, the
    field `segment_by` that holds a row's segment, and the `language` and `license` of the texts.
    """

    name: str
    title: str
    description: str
    segment_by: str
    language: str
    license: str
    requests: int
    file: str


def _paths() -> dict[str, Path]:
    folder = next((place for place in _PLACES if place.is_dir()), _PLACES[0])
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def suites() -> list[Suite]:
    return [find_suite(name)[0] for name in _paths()]


def suite_names() -> list[str]:
    """The names of the built-in suites, without reading them."""
    return list(_paths())


def find_suite(name: str) -> tuple[Suite, Path]:
    """A suite and the file with its rows.

    Raises:
        TrafficError: there is no such suite, or it is damaged.
    """
    paths = _paths()
    if name not in paths:
        specs = [f"suite:{stem}" for stem in paths]
        meant = f"suite:{name.rpartition(':')[2]}"
        hint = did_you_mean(meant, specs, f"choose from: {', '.join(paths)}", alike=0.8)
        raise TrafficError(f"`suite:{name}` is not a built-in suite", hint=hint)
    path = paths[name]
    try:
        suite = msgspec.convert(read_yaml(path), Suite)
    except (UnreadableError, msgspec.ValidationError) as error:
        raise TrafficError(
            f"suite `{path.name}` cannot be read: {error}", hint="install draftbench again"
        ) from error
    return suite, path.with_name(Path(suite.file).name)
