"""Replays whose longest lists stay JSON until they are asked for."""

import msgspec
import pytest
from msgspec import Raw
from scenes import named, replay

from draftbench.errors import RunFolderError
from draftbench.records import Replay
from draftbench.run_folder.unread import UnreadReplay

MADE = replay((1.0, 0.0), named("d"), confidence=(0.5, 0.25), margin=(3.0, 0.0), rank=(0, 7))
WRITTEN = msgspec.json.encode(MADE, enc_hook=list)
LISTS = ("confidence", "margin", "rank")


def read(written):
    return msgspec.json.decode(written, type=UnreadReplay)


def test_a_list_is_decoded_when_it_is_asked_for_and_is_what_was_written():
    slots = {name: Replay.__dict__[name] for name in LISTS}
    found = read(WRITTEN)
    assert all(isinstance(slot.__get__(found), Raw) for slot in slots.values())
    assert [getattr(found, name) for name in LISTS] == [getattr(MADE, name) for name in LISTS]
    assert not any(isinstance(slot.__get__(found), Raw) for slot in slots.values())
    assert msgspec.json.encode(found, enc_hook=list) == WRITTEN


@pytest.mark.parametrize(
    ("name", "value"),
    [("rank", b"[0,-7]"), ("rank", b"[0,7,7]"), ("margin", b'["a",0.0]'), ("margin", b"7")],
)
def test_numbers_that_no_sweep_writes_are_refused_by_the_name_of_the_request(name, value):
    asked = msgspec.json.decode(WRITTEN)[name]
    written = f'"{name}":{msgspec.json.encode(asked).decode()}'.encode()
    found = read(WRITTEN.replace(written, f'"{name}":'.encode() + value))
    with pytest.raises(RunFolderError, match=f"`{name}` in the replay of request `{MADE.request}`"):
        getattr(found, name)


def test_acceptance_is_checked_as_it_is_read():
    with pytest.raises(msgspec.ValidationError, match="drafting was greedy"):
        read(WRITTEN.replace(b"[1.0,0.0]", b"[1.0,0.5]"))
