"""A data set, on the hub or in a local folder, → its raw rows, through the `datasets` library.

`DATASET[/CONFIG][:SPLIT][@REVISION]`, where a DATASET of the hub is `name` or `owner/name`, and a
local one, which has no revisions, starts with `/`, `.` or `~`. What comes from the hub is all of
one commit. The library only says which files of a local folder are which split: they are read here,
so that no text is copied into its cache, and only inside the folder, wherever the folder's metadata
or its links lead.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from draftbench.errors import DraftbenchError, TrafficError
from draftbench.hub import hub_answers
from draftbench.safe_files import read_limited
from draftbench.traffic.readers import Row, can_read, read_rows

MAX_METADATA_BYTES = 4 << 20
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Dataset:
    """A data set by its parts. `local` says that `path` is a folder."""

    path: str
    config: str | None
    split: str | None
    local: bool
    revision: str | None = None

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
        with _in_words(self.path):
            found = self._files() if self.local else None
            split = self.split or self._only(self._splits() if found is None else found)
            rows = self._rows(split) if found is None else _rows_of(found, split)
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
        with _in_words(self.path):
            return str(self._builder.hash)

    @cached_property
    def _builder(self) -> Any:
        """The library's reader. Made once, so that both readings are of one commit, even if the
        branch moves on meanwhile.
        """
        hub_answers()  # before the library is imported, which would try again and again
        import datasets

        datasets.disable_progress_bars()
        datasets.logging.set_verbosity_error()  # stderr belongs to the command
        # By its name alone the library would prefer a folder that lies here by chance.
        where = f"hf://datasets/{self.path}"
        found = datasets.load_dataset_builder(where, self.config, revision=self.revision)
        self._refuse_another(found)
        inside = re.compile(rf"hf://datasets/[^@]+@{re.escape(found.hash)}/")
        for file in itertools.chain(*(found.config.data_files or {}).values()):
            if not inside.match(file):  # its README may name any file, here or anywhere
                raise _leads_out(self.path, file)
        return found

    def _refuse_another(self, found: Any) -> None:
        """Without a network the library takes what was cached last, whatever was asked for."""
        from datasets.packaged_modules.cache.cache import Cache

        asked = self.revision
        exact = asked is not None and _COMMIT.fullmatch(asked)
        if asked and found.hash != asked and (exact or isinstance(found, Cache)):
            raise TrafficError(
                f"data set `{self.path}` at `{asked}` is not at hand; cached is {found.hash}",
                hint=f"the hub needs a network; or take `@{found.hash}`",
            )

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
        """Names of the splits, where possible before anything is downloaded."""
        import datasets

        if self._builder.info.splits is None:
            where, commit = f"hf://datasets/{self.path}", self.commit
            return list(datasets.get_dataset_split_names(where, self.config, revision=commit))
        return list(map(str, self._builder.info.splits))

    def _only(self, splits: Collection[str]) -> str:
        if len(splits) != 1:
            raise TrafficError(
                f"data set `{self.path}` has {len(splits)} splits",
                hint=f"name one: {', '.join(f'hf:{self.path}:{split}' for split in splits)}",
            )
        return next(iter(splits))

    def _rows(self, split: str) -> Iterator[dict[str, Any]]:
        self._builder.download_and_prepare()
        return map(dict, self._builder.as_dataset(split=split))


@contextmanager
def _in_words(path: str) -> Iterator[None]:
    """The libraries' errors as one that names the data set. They raise what they like: of files, of
    YAML, of the network.
    """
    try:
        yield
    except (DraftbenchError, MemoryError):
        raise
    except Exception as error:
        # Only the kind of error: the library's messages may quote the rows.
        raise TrafficError(
            f"data set `{path}` cannot be read ({type(error).__name__})",
            hint="write `hf:DATASET[/CONFIG][:SPLIT][@REVISION]`, or `hf:FOLDER`; the hub needs a "
            "network",
        ) from None


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
        f"data set `{folder}` names `{name}`, which lies outside of it",
        hint="copy the file into the folder, or give it alone: `--traffic FILE`",
    )


def _rows_of(files: Mapping[str, Sequence[Path]], split: str) -> Iterator[Any]:
    if split not in files:
        raise ValueError(split)
    return (row.data for file in files[split] for row in read_rows(file))


def on_hub(text: str) -> bool:
    """Whether the data set of this name is one of the hub, and no local folder."""
    return not text.startswith(("/", ".", "~"))


def parse_dataset(text: str) -> Dataset:
    """Take `DATASET[/CONFIG][:SPLIT][@REVISION]` apart.

    Raises:
        TrafficError: a name that cannot be one, or a local folder that is not there.
    """
    if not on_hub(text):
        return _local(text)
    name, at, revision = text.partition("@")
    path, _, split = name.partition(":")
    parts = path.split("/")
    if not all(parts) or len(parts) > 3 or (at and not revision):
        raise TrafficError(
            f"`{text}` is not a data set",
            hint="write `hf:owner/name`, `hf:owner/name/config:split` or `hf:owner/name@revision`",
        )
    config = parts[2] if len(parts) == 3 else None
    return Dataset("/".join(parts[:2]), config, split or None, False, revision or None)


def _local(text: str) -> Dataset:
    path, _, split = text.partition(":")
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise TrafficError(f"folder `{path}` not found", hint="`hf:` takes a folder or a hub name")
    return Dataset(str(folder), None, split or None, local=True)
