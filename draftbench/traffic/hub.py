"""A data set, on the hub or in a local folder, → its raw rows, through the `datasets` library.

`DATASET[/CONFIG][:SPLIT]`, where a DATASET of the hub is `name` or `owner/name`, and a local one
starts with `/`, `.` or `~`. A local folder is streamed, so that its text is not copied into the
library's cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftbench.errors import TrafficError
from draftbench.traffic.readers import Row


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
            split = self.split or self._only_split()
            stream: Any = datasets.load_dataset(
                self.path, self.config, split=split, streaming=self.local
            )
            for number, row in enumerate(stream, 1):
                yield Row(number, dict(row))
        except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
            # Only the kind of error: the library's messages may quote the rows.
            raise TrafficError(
                f"data set `{self.path}` cannot be read ({type(error).__name__})",
                hint="write `hf:DATASET[/CONFIG][:SPLIT]`, or `hf:FOLDER`; the hub needs a network",
            ) from None

    def _only_split(self) -> str:
        import datasets

        splits = datasets.get_dataset_split_names(self.path, self.config)
        if len(splits) != 1:
            raise TrafficError(
                f"data set `{self.path}` has {len(splits)} splits",
                hint=f"name one: {', '.join(f'hf:{self.path}:{split}' for split in splits)}",
            )
        return str(splits[0])


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
