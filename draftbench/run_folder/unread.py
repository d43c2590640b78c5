"""Replays of a sealed run, whose longest lists stay JSON until they are asked for: a run of ten
thousand requests holds a hundred million numbers, and most figures need none of these.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from draftbench.errors import RunFolderError
from draftbench.records import Amount, Count, Numbers, Replay, numbers


class UnreadReplay(Replay, frozen=True, tag="replay"):
    """A replay as it stands in its file."""

    confidence: Raw  # type: ignore[assignment]
    margin: Raw  # type: ignore[assignment]
    rank: Raw  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.check_acceptance()


class _Unread:
    """A field that is decoded when it is first asked for."""

    def __init__(self, name: str, typecode: str, number: Any) -> None:
        self._slot, self._name, self._typecode = Replay.__dict__[name], name, typecode
        self._decoder = msgspec.json.Decoder(list[number])

    def __get__(self, replay: UnreadReplay, owner: object = None) -> Numbers:
        found = self._slot.__get__(replay)
        if isinstance(found, Raw):
            try:
                found = numbers(self._typecode, self._decoder.decode(found))
                if len(found) not in (0, len(replay.accept)):
                    raise msgspec.DecodeError(f"{len(found)} entries, not {len(replay.accept)}")
            except msgspec.DecodeError as error:
                raise RunFolderError(
                    f"`{self._name}` in the replay of request `{replay.request}`: {error}",
                    hint="the file was changed by something else",
                ) from error
            self._slot.__set__(replay, found)
        return found


for _field in (("confidence", "d", Amount), ("margin", "d", Amount), ("rank", "q", Count)):
    setattr(UnreadReplay, _field[0], _Unread(*_field))
