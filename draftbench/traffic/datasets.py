"""Reads a data set from the hub or from a local folder, through the `datasets` library.

It is named `DATASET[/CONFIG][:SPLIT][@REVISION]`. On the hub a DATASET is `name` or `owner/name`; a
local one starts with `/`, `.` or `~` and has no revisions. Everything read from the hub comes from
one commit. For a local folder the library only maps splits to files. The files are read here, so
that no text is copied into the library's cache, and only inside the folder, wherever its metadata
or links point.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from draftbench.errors import DraftbenchError, TrafficError
from draftbench.hub import hub_answers
from draftbench.safe_files import read_limited
from draftbench.traffic.files import Row, can_read, read_rows, without_padding

MAX_METADATA_BYTES = 4 << 20
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Dataset:
    """A data set's name in its parts."""

    path: str
    config: str | None
    split: str | None
    local: bool  # whether `path` is a folder
    revision: str | None = None

    @property
    def name(self) -> str:
        """The name shown as the requests' source: the last part of the path, and the split."""
        last = Path(self.path).name
        return last if self.split is None else f"{last}:{self.split}"

    def rows(self) -> Iterator[Row]:
        """Yield the rows of the named split, or of the only one.

        Raises:
            TrafficError: the data set cannot be found or read, or a split must be named.
        """
        with _readable_errors(self.path):
            files = self._files() if self.local else None
            splits = list(self._hub_splits() if files is None else files)
            if self.split is None and len(splits) != 1:
                raise TrafficError(
                    f"data set `{self.path}` has {len(splits)} splits",
                    hint=f"name one: {', '.join(f'hf:{self.path}:{split}' for split in splits)}",
                )
            split = self.split or splits[0]
            rows: Iterable[Any]
            if files is None:
                self._builder.download_and_prepare()
                rows = map(without_padding, map(dict, self._builder.as_dataset(split=split)))
            else:
                rows = (row.data for file in files[split] for row in read_rows(file))
            for number, row in enumerate(rows, 1):
                yield Row(number, row)

    @property
    def commit(self) -> str | None:
        """The commit that the rows come from; None for a local folder.

        Raises:
            TrafficError: the data set cannot be found.
        """
        if self.local:
            return None
        with _readable_errors(self.path):
            return str(self._builder.hash)

    @cached_property
    def _builder(self) -> Any:
        """The library's reader, made once so that the reported commit is the one that is read."""
        hub_answers()  # before the library is imported, which would try several times
        import datasets
        from datasets.packaged_modules.cache.cache import Cache

        datasets.disable_progress_bars()
        datasets.logging.set_verbosity_error()  # stderr belongs to the command
        # With the bare name the library would prefer a folder of that name in this directory.
        where = f"hf://datasets/{self.path}"
        builder = datasets.load_dataset_builder(where, self.config, revision=self.revision)
        exact = self.revision is not None and _COMMIT.fullmatch(self.revision)
        # Without a network the library uses the commit that was cached last.
        cached = exact or isinstance(builder, Cache)
        if self.revision and builder.hash != self.revision and cached:
            raise TrafficError(
                f"data set `{self.path}` at `{self.revision}` is not available; "
                f"cached is {builder.hash}",
                hint=f"connect to the hub, or use `@{builder.hash}`",
            )
        inside = re.compile(rf"hf://datasets/[^@]+@{re.escape(builder.hash)}/")
        for file in itertools.chain(*(builder.config.data_files or {}).values()):
            if not inside.match(file):  # a README may name any file, on this machine or elsewhere
                raise _outside(self.path, file)
        return builder

    def _hub_splits(self) -> Iterable[str]:
        """The names of the splits, without a download if possible."""
        if self.split is not None:
            return [self.split]
        if self._builder.info.splits is not None:
            return map(str, self._builder.info.splits)
        import datasets

        where, commit = f"hf://datasets/{self.path}", self._builder.hash
        return datasets.get_dataset_split_names(where, self.config, revision=commit)

    def _files(self) -> dict[str, list[Path]]:
        """A local folder's files by split; each must lie inside the folder and be readable here."""
        import datasets

        _check_metadata(Path(self.path))
        config = datasets.load_dataset_builder(self.path, self.config).config
        by_split = {
            str(split): list(map(Path, names)) for split, names in (config.data_files or {}).items()
        }
        folder = Path(self.path).resolve()
        for file in (file for files in by_split.values() for file in files):
            if not file.resolve().is_relative_to(folder):
                raise _outside(self.path, file.name)
            if not can_read(file):
                raise TrafficError(
                    f"data set `{self.path}` holds `{file.name}`, which draftbench cannot read",
                    hint="name one of its files instead, or convert it to .jsonl or .parquet",
                )
        return by_split


@contextmanager
def _readable_errors(path: str) -> Iterator[None]:
    """Turn any error of the libraries into one that names the data set."""
    try:
        yield
    except (DraftbenchError, MemoryError):
        raise
    except Exception as error:
        # Only the error's class is shown: the library's messages may quote rows.
        raise TrafficError(
            f"data set `{path}` cannot be read ({type(error).__name__})",
            hint="write `hf:DATASET[/CONFIG][:SPLIT][@REVISION]`, or `hf:FOLDER`; the hub needs a "
            "network",
        ) from None


def _check_metadata(folder: Path) -> None:
    """Refuse a README that names files by a URL, which the library would fetch at once.

    Names of files are at least three levels deep. Aliases are refused, since one could put a name
    there.
    """
    import yaml

    texts = []
    if (dedicated := folder / ".huggingface.yaml").exists():
        texts.append(read_limited(dedicated, MAX_METADATA_BYTES).decode())
    if (readme := folder / "README.md").exists():
        text = read_limited(readme, MAX_METADATA_BYTES).decode()
        texts += re.findall(r"\A\s*---[\r\n]+([\S\s]*?)[\r\n]+---(?:\r|\n|$)", text)
    depth = 0
    for event in (event for text in texts for event in yaml.parse(text)):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        value = event.value if isinstance(event, yaml.ScalarEvent) else ""
        if isinstance(event, yaml.AliasEvent) or (depth > 2 and "://" in value):
            raise _outside(str(folder), value or "an alias")


def _outside(folder: str, name: str) -> TrafficError:
    return TrafficError(
        f"data set `{folder}` names `{name}`, which is outside of it",
        hint="copy the file into the folder, or give the file itself: `--traffic FILE`",
    )


def on_hub(text: str) -> bool:
    """Whether this is a data set on the hub rather than a local folder."""
    return not text.startswith(("/", ".", "~"))


def parse_dataset(text: str) -> Dataset:
    """Parse `DATASET[/CONFIG][:SPLIT][@REVISION]`.

    Raises:
        TrafficError: the name is malformed, or there is no such local folder.
    """
    if not on_hub(text):
        path, _, split = text.partition(":")
        folder = Path(path).expanduser()
        if not folder.is_dir():
            raise TrafficError(
                f"folder `{path}` not found", hint="`hf:` takes a folder or a hub name"
            )
        return Dataset(str(folder), None, split or None, local=True)
    name, at, revision = text.partition("@")
    path, _, split = name.partition(":")
    parts = path.split("/")
    if not all(parts) or len(parts) > 3 or (at and not revision):
        raise TrafficError(
            f"`{text}` is not the name of a data set",
            hint="write `hf:owner/name`, `hf:owner/name/config:split` or `hf:owner/name@revision`",
        )
    config = parts[2] if len(parts) == 3 else None
    return Dataset("/".join(parts[:2]), config, split or None, False, revision or None)
