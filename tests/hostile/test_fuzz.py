"""Whatever the bytes, a reader takes them or refuses them in words; `scripts/fuzz_readers.py` gives
each of them thousands more.
"""

import warnings

import pytest
from fuzz_readers import fuzz
from fuzzed_readers import READERS, Reader

EXAMPLES = 10


@pytest.mark.parametrize("name", READERS)
def test_a_reader_takes_or_refuses_whatever_it_is_given(tmp_path, name):
    reader = READERS[name](tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # libraries warn of what they refuse
        tally = fuzz(reader, EXAMPLES, tmp_path)
    assert tally.faults == {}
    assert tally.examples == EXAMPLES
    assert tally.refused > 0


def test_a_reader_that_fails_otherwise_is_found_out(tmp_path):
    def careless(folder, data):
        if b"x" in data:
            raise KeyError("x")

    reader = Reader(careless, b'{"a": "b"}', b'{"a": "b"}')
    tally = fuzz(reader, 200, tmp_path)
    assert [fault.split(" at ")[0] for fault in tally.faults] == ["KeyError"]
