"""A data set, on the hub or in a local folder, → its raw rows, through the `datasets` library.

`DATASET[/CONFIG][:SPLIT]`, where a DATASET of the hub is `name` or `owner/name`, and a local one
starts with `/`, `.` or `~`. A local folder is streamed, so that its text is not copied into the
library's cache.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftbench.errors import TrafficError
from draftbench.traffic.readers import Row, can_read, read_rows


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

        try:
            found = self._files() if self.local else None
            split = self.split or self._only(found or self._splits())
            rows = self._rows(split) if found is None else _rows_of(found, split)
            for number, row in enumerate(rows, 1):
                yield Row(number, row)
        except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
            # Only the kind of error: the library's messages may quote the rows.
            raise TrafficError(
                f"data set `{self.path}` cannot be read ({type(error).__name__})",
                hint="write `hf:DATASET[/CONFIG][:SPLIT]`, or `hf:FOLDER`; the hub needs a network",
            ) from None

    def _files(self) -> dict[str, list[Path]] | None:
        """A folder's files by split, where draftbench reads them itself: the library would hold a
        whole row group, which can be the whole file.
        """
        import datasets

        config = datasets.load_dataset_builder(self.path, self.config).config
        found = {
            str(split): list(map(Path, names)) for split, names in (config.data_files or {}).items()
        }
        ours = all(can_read(file) for files in found.values() for file in files)
        return found if found and ours else None

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

        stream: Any = datasets.load_dataset(
            self.path, self.config, split=split, streaming=self.local
        )
        return map(dict, stream)


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
