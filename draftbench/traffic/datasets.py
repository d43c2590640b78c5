"""Reads a data set from the hub, through the `datasets` library.

It is named `DATASET[/CONFIG][:SPLIT][@REVISION]`, where DATASET is `name` or `owner/name`.
Everything is read from one commit, and only from the data set itself, whatever files its metadata
names.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from draftbench.errors import DraftbenchError, TrafficError
from draftbench.hub import hub_answers
from draftbench.traffic.files import Row, without_padding

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Dataset:
    """A data set's name in its parts."""

    path: str
    config: str | None
    split: str | None
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
            split = self.split
            if split is None:
                known = self._builder.info.splits  # of most it is known without a download
                if known is None:
                    import datasets

                    where, commit = f"hf://datasets/{self.path}", self._builder.hash
                    known = datasets.get_dataset_split_names(where, self.config, revision=commit)
                split, *others = map(str, known)
                if others:
                    names = ", ".join(f"hf:{self.path}:{name}" for name in (split, *others))
                    raise TrafficError(
                        f"data set `{self.path}` has {len(others) + 1} splits",
                        hint=f"name one: {names}",
                    )
            self._builder.download_and_prepare()
            for number, row in enumerate(self._builder.as_dataset(split=split), 1):
                yield Row(number, without_padding(dict(row)))

    @property
    def commit(self) -> str:
        """The commit that the rows come from.

        Raises:
            TrafficError: the data set cannot be found.
        """
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
                raise TrafficError(
                    f"data set `{self.path}` names `{file}`, which is outside of it",
                    hint="give the file itself: `--traffic FILE`",
                )
        return builder


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
            hint="write `hf:DATASET[/CONFIG][:SPLIT][@REVISION]`; the hub needs a network",
        ) from None


def parse_dataset(text: str) -> Dataset:
    """Parse `DATASET[/CONFIG][:SPLIT][@REVISION]`.

    Raises:
        TrafficError: the name is malformed.
    """
    if text.startswith(("/", ".", "~")):
        raise TrafficError(f"`hf:{text}` is a path", hint="give a file: `--traffic FILE`")
    name, at, revision = text.partition("@")
    path, _, split = name.partition(":")
    parts = path.split("/")
    if not all(parts) or len(parts) > 3 or (at and not revision):
        raise TrafficError(
            f"`{text}` is not the name of a data set",
            hint="write `hf:owner/name`, `hf:owner/name/config:split` or `hf:owner/name@revision`",
        )
    config = parts[2] if len(parts) == 3 else None
    return Dataset("/".join(parts[:2]), config, split or None, revision or None)
