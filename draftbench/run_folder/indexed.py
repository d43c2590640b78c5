"""An append-only file of records → any of them by its key, without holding them: only the place of
each one's line is kept.

Records of one append lie in one line and are read together, so readers that go through the keys in
the order of writing decode every line once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from draftbench.records import Record
from draftbench.run_folder.lines import decoded, whole_lines

K = TypeVar("K", bound=Hashable)
R = TypeVar("R", bound=Record)


class Indexed(Generic[K, R]):
    """The records of a file by key; where several have the same, the last one.

    Args:
        path: may not exist yet.
        kind: the records' type.
        key: what tells a record from the others.
    """

    def __init__(self, path: Path, kind: type[R], key: Callable[[R], K]) -> None:
        self.path, self.key = path, key
        self._decoder = msgspec.json.Decoder(kind | list[kind])  # type: ignore[valid-type]
        self._places: dict[K, int] = {}
        self._end = 0
        self._last: tuple[int, dict[K, R]] = (-1, {})

    def read_on(self) -> Iterator[R]:
        """Yield the records that were appended since the last call, remembering where they are."""
        for place, line in whole_lines(self.path, self._end):
            records = decoded(self._decoder, line, f"`{self.path}` at byte {place}")
            self._end = place + len(line)
            self._places.update(dict.fromkeys(map(self.key, records), place))
            yield from records

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __getitem__(self, key: K) -> R:
        place = self._places[key]
        if self._last[0] != place:
            _, line = next(whole_lines(self.path, place))
            records = decoded(self._decoder, line, f"`{self.path}` at byte {place}")
            self._last = place, {self.key(record): record for record in records}
        return self._last[1][key]
