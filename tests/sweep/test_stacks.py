"""Sweeps of stacks: prompt lookup, and where it finds nothing the draft behind it."""

import random_heads
from sweep.conftest import rows_as_replayed

from draftbench.drafts.stack.replay import StackReplay


def test_every_decoded_round_of_a_stack_is_the_one_that_its_parts_replays_say(small, tmp_path):
    config = random_heads.config(2048, 200, hidden=256)
    head = random_heads.save(tmp_path / "head", config, random_heads.tensors(config))
    how = {"ks": (1, 3), "dtype": "float32", "requests": 2, "max_new_tokens": 24}
    stacks = f"ngram+{small.models / 'draft'}", f"ngram+eagle3:{head}"
    run = small.found(*stacks, **how, measure_requests=2)
    names = [str(candidate) for candidate in run.candidates]
    assert names == ["draft", "eagle3:head", "ngram", "ngram+draft", "ngram+eagle3:head"]
    decoded = {row.candidate for row in rows_as_replayed(run)}
    stacked = [record for record in run.replays if isinstance(record, StackReplay)]
    kinds = {(record.candidate, bool(n)) for record in stacked for n in record.lookup.proposed}
    assert len(kinds) == 4  # both parts drafted in both stacks
    assert {candidate for candidate, _ in kinds} <= decoded
