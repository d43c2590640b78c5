"""Whatever the bytes, a reader takes them or refuses them in words; `scripts/fuzz_readers.py` gives
each of them thousands more.
"""

from __future__ import annotations

import warnings

import pytest

READERS = [
    *(f"traffic {kind}" for kind in (".jsonl", ".json", ".csv", ".parquet", ".jsonl.gz")),
    *("traffic .jsonl.zst", "suite YAML", "sweep.yaml", "--costs YAML"),
    *("run: run.json", "run: trajectory", "run: replay", "run: lookupreplay", "run: decode"),
    *(
        "run: costpoint",
        "run: modelfacts",
        "run: machinestate",
        "run: private texts",
        "run: private drafts",
    ),
    *("baseline", "model: config.json"),
    *("model: tokenizer.json", "model: tokenizer_config.json", "model: generation_config.json"),
    *("model: model.safetensors.index.json", "model: safetensors header", "model: GGUF header"),
    "model: chat_template.jinja",
]
EXAMPLES = 10


@pytest.mark.parametrize("name", READERS)
def test_a_reader_takes_or_refuses_whatever_it_is_given(tmp_path, script, name):
    reader = script("fuzzed_readers").READERS[name](tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # libraries warn of what they refuse
        tally = script("fuzz_readers").fuzz(reader, EXAMPLES, tmp_path)
    assert tally.faults == {}
    assert tally.examples == EXAMPLES
    assert tally.refused > 0


def test_no_reader_is_left_out(script):
    assert set(script("fuzzed_readers").READERS) == set(READERS)


def test_a_reader_that_fails_otherwise_is_found_out(tmp_path, script):
    def careless(folder, data):
        if b"x" in data:
            raise KeyError("x")

    reader = script("fuzzed_readers").Reader(careless, b'{"a": "b"}', b'{"a": "b"}')
    tally = script("fuzz_readers").fuzz(reader, 200, tmp_path)
    assert [fault.split(" at ")[0] for fault in tally.faults] == ["KeyError"]
