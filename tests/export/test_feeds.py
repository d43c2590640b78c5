"""What other tools take of a run; by hand, and by their own parsers where they are installed."""

import json
import os
import runpy
from pathlib import Path

import pytest
import yaml

SGLANG = os.environ.get("DRAFTBENCH_SGLANG_SOURCES")


@pytest.fixture
def told(command, make_run):
    """What `export` prints for a tool: `small` accepts .5 of its tokens at every position."""

    def export(tool, *flags):
        outcome = command("export", str(make_run(draft="small")), "--engine", tool, *flags)
        assert outcome.code == 0, outcome.err
        return outcome

    return export


def test_aiconfigurator_is_given_a_length_and_the_tokens_accepted_a_step(told):
    outcome = told("aiconfigurator")
    name, k, accepted_name, accepted = outcome.out.split()
    assert (name, accepted_name) == ("--nextn", "--nextn-accepted")
    assert 0 < float(accepted) <= int(k)
    assert "95% interval" in outcome.err or "too few requests" in outcome.err
    speculative = pytest.importorskip("aiconfigurator.sdk.speculative")
    assert speculative.normalize_speculative_decoding(int(k), float(accepted)) == (
        int(k), float(accepted),
    )  # fmt: skip


def test_inferencex_is_given_the_mean_accepted_length_at_every_k(told):
    found = yaml.safe_load(told("inferencex").out)
    draft = found.pop("_metadata")["draft-model"]
    ((_, by_mode),) = found.items()
    lengths = by_mode["thinking_off"]
    assert draft
    assert all(1 <= length <= k + 1 for k, length in lengths.items())
    assert list(lengths.values()) == sorted(lengths.values())


def test_sglang_is_given_passes_a_second_by_tokens_of_a_pass(told):
    text = told("sglang-sps").out
    table = json.loads(text)
    tokens = table["sample_batch_tokens"]
    assert tokens == sorted(set(tokens))
    assert len(tokens) == len(table["sample_steps_per_sec"])
    assert table["max_batch_tokens"] == tokens[-1]
    if SGLANG is not None:
        path = Path(SGLANG) / "srt/speculative/dspark_components/dspark_sps.py"
        read = runpy.run_path(str(path))["SpsCostTable"].from_json(text)
        assert read.lookup(tokens[0]) == table["sample_steps_per_sec"][0]


def test_a_tool_is_known_by_its_name_and_others_are_listed(command, make_run):
    outcome = command("export", str(make_run(draft="small")), "--engine", "inferencx")
    assert outcome.code == 2
    assert "inferencex" in outcome.err
    assert outcome.out == ""
