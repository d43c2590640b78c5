"""A data set, on the hub or in a local folder, → its raw rows, through the `datasets` library.

`DATASET[/CONFIG][:SPLIT]`, where a DATASET of the hub is `name` or `owner/name`, and a local one
starts with `/`, `.` or `~`. The library only says which files of a local folder are which split:
they are read here, so that no text is copied into its cache, and only inside the folder, wherever
the folder's metadata or its links lead.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftbench.errors import TrafficError
from draftbench.reading import UnreadableError, read_limited
from draftbench.traffic.readers import Row, can_read, read_rows

MAX_METADATA_BYTES = 4 << 20
_UNREADABLE = (OSError, ValueError, RuntimeError, OverflowError, UnreadableError)


@dataclass(frozen=True)
class Dataset:
    """A data set by its parts. `local` says that `path` is a folder."""

    path: str
    config: str | None
    split: str | None
    local: bool

    @property
    def name(self) -> str:
        """How the requests name their source: the last part of the path, and the split."""
        last = Path(self.path).name
        return last if self.split is None else f"{last}:{self.split}"

    def rows(self) -> Iterator[Row]:
        """Yield the rows of the split, or of the only split.

        Raises:
            TrafficError: the data set cannot be found or read, or the split must be named.
        """
        import datasets
        import yaml

        unreadable = (*_UNREADABLE, yaml.YAMLError, datasets.exceptions.DatasetsError)
        try:
            found = self._files() if self.local else None
            split = self.split or self._only(self._splits() if found is None else found)
            rows = self._rows(split) if found is None else _rows_of(found, split)
            for number, row in enumerate(rows, 1):
                yield Row(number, row)
        except unreadable as error:
            # Only the kind of error: the library's messages may quote the rows.
            raise TrafficError(
                f"data set `{self.path}` cannot be read ({type(error).__name__})",
                hint="write `hf:DATASET[/CONFIG][:SPLIT]`, or `hf:FOLDER`; the hub needs a network",
            ) from None

    def _files(self) -> dict[str, list[Path]]:
        """A local folder's files by split, each inside the folder and of a kind read here."""
        import datasets

        _check_metadata(Path(self.path))
        config = datasets.load_dataset_builder(self.path, self.config).config
        found = {
            str(split): list(map(Path, names)) for split, names in (config.data_files or {}).items()
        }
        folder = Path(self.path).resolve()
        for file in (file for files in found.values() for file in files):
            if not file.resolve().is_relative_to(folder):
                raise _leads_out(self.path, file.name)
            if not can_read(file):
                raise TrafficError(
                    f"data set `{self.path}` holds `{file.name}`, of no kind that draftbench reads",
                    hint="name one of its files instead, or convert it to .jsonl or .parquet",
                )
        return found

    def _splits(self) -> list[str]:
        import datasets

        return list(map(str, datasets.get_dataset_split_names(self.path, self.config)))

    def _only(self, splits: Collection[str]) -> str:
        if len(splits) != 1:
            raise TrafficError(
                f"data set `{self.path}` has {len(splits)} splits",
                hint=f"name one: {', '.join(f'hf:{self.path}:{split}' for split in splits)}",
            )
        return next(iter(splits))

    def _rows(self, split: str) -> Iterator[dict[str, Any]]:
        import datasets

        stream: Any = datasets.load_dataset(self.path, self.config, split=split)
        return map(dict, stream)


def _check_metadata(folder: Path) -> None:
    """A README may name files by their address, which the library would ask for at once. Only
    values this deep can be names of files; an alias could carry one there.
    """
    import yaml

    depth = 0
    for event in (event for text in _metadata(folder) for event in yaml.parse(text)):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        value = event.value if isinstance(event, yaml.ScalarEvent) else ""
        if isinstance(event, yaml.AliasEvent) or (depth > 2 and "://" in value):
            raise _leads_out(str(folder), value or "an alias")


def _metadata(folder: Path) -> Iterator[str]:
    if (own := folder / ".huggingface.yaml").exists():
        yield read_limited(own, MAX_METADATA_BYTES).decode()
    if (readme := folder / "README.md").exists():
        text = read_limited(readme, MAX_METADATA_BYTES).decode()
        yield from re.findall(r"\A\s*---[\r\n]+([\S\s]*?)[\r\n]+---(?:\r|\n|$)", text)


def _leads_out(folder: str, name: str) -> TrafficError:
    return TrafficError(
        f"data set `{folder}` names `{name}`, which lies outside of the folder",
        hint="copy the file into the folder, or give it alone: `--traffic FILE`",
    )


def _rows_of(files: Mapping[str, Sequence[Path]], split: str) -> Iterator[Any]:
    if split not in files:
        raise ValueError(split)
    return (row.data for file in files[split] for row in read_rows(file))


def parse_dataset(text: str) -> Dataset:
    """Take `DATASET[/CONFIG][:SPLIT]` apart.

    Raises:
        TrafficError: a name that cannot be one, or a local folder that is not there.
    """
    path, _, split = text.partition(":")
    if path.startswith(("/", ".", "~")):
        folder = Path(path).expanduser()
        if not folder.is_dir():
            raise TrafficError(
                f"folder `{path}` not found", hint="`hf:` takes a folder or a hub name"
            )
        return Dataset(str(folder), None, split or None, local=True)
    parts = path.split("/")
    if not all(parts) or len(parts) > 3:
        raise TrafficError(
            f"`{text}` is not a data set",
            hint="write `hf:owner/name`, `hf:owner/name/config:split`",
        )
    return Dataset(
        "/".join(parts[:2]), parts[2] if len(parts) == 3 else None, split or None, local=False
    )
