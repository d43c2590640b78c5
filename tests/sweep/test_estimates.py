"""How long a dry run says that a sweep takes, of models whose sizes are round numbers."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from scenes import query, sheet

from draftbench.records import Candidate, DraftLength
from draftbench.run_folder import run
from draftbench.sweep.estimates import (
    START_SECONDS,
    DeviceSpeed,
    speed_of,
    stages_of_decoder,
    stages_to_come,
)
from draftbench.sweep.options import ServingOptions, SweepOptions

SMALL, NGRAM, SELF = Candidate(draft="small"), Candidate(draft="ngram"), Candidate(draft="self")

CORES = DeviceSpeed(reading=20e9, layer=0.0, token=1 / 10, in_layer=0.0, loading=45e6)


@pytest.fixture
def work(tmp_path):
    """work(**options): ten requests of 60 tokens and at most 40 to write. The target's step takes
    100 ms of 2 GB at 20 GB/s, the draft's a tenth of it; 90 million weights are loaded in two
    seconds.
    """
    target = sheet("big", 2_000_000_000, layers=10, parameters=450_000_000)
    draft = sheet("small", 200_000_000, layers=1, parameters=45_000_000)

    def planned(candidates=(SMALL, NGRAM, SELF), speed=CORES, **options):
        asked = {"drafts": ("small",), "ks": (1, 2, 3), "measure_requests": 5} | options
        prepared = SimpleNamespace(
            options=SweepOptions("big", traffic=query(tmp_path), **asked),
            candidates=candidates,
            prompt_tokens=[(60, 40)] * 10,
        )
        stages = stages_of_decoder(prepared, target, {"small": draft}, speed)
        return pytest.approx(START_SECONDS + sum(stage.start + stage.seconds for stage in stages))

    return planned


# 5 s of libraries, 45 million weights a second.
LOADING = 5 + 10 + 1
# 8 rows side by side, of which each after the first takes a tenth: 50 passes of 1.7 steps; and 600
# tokens of prompts at a tenth of a step.
WRITING = 0.1 * (50 * 1.7 + 60)
# The target scores 1000 tokens; draft, and target as its own, read them; prompt lookup takes none.
# After every fourth of 400 written tokens the draft drafts two more, in ten rows side by side.
READING = 0.1 * 100 + 0.01 * 100 + 0.1 * 100
OFF_PATH = 0.01 * 400 / 4 * 2 / 10 * 1.9
REPLAYING = READING + OFF_PATH
# 3 turns of 3 passes at 3 lengths of text, over 1, 2, 3 and 4 tokens, beside either candidate, and
# over 1 and 2 by the draft; 3 prompts of 60 tokens, 3 times twice.
OF_TARGET, OF_SMALL = 0.1 * (27 * 4.6 + 18 * 6), 0.01 * (27 * 2.1 + 18 * 6)
STEPS = 2 * OF_TARGET + OF_SMALL
# A cell is 5 requests of 40 tokens, and once 14 tokens to warm up, beside 6 prompts, which the
# draft reads too, or the target as its own.
CELL = 0.1 * (5 * 40 + 14 + 6 * 6)
WITH_SMALL, WITH_SELF = CELL + 0.01 * 6 * 6, CELL + 0.1 * 6 * 6
# One without a draft and one at one k.
DECODING = 2 * (WITH_SMALL + CELL)


def timed(cells, steps=STEPS, of_self=0.0):
    """The mean of the least and half of so many cells, which is more."""
    most = cells / 2 * (WITH_SMALL + CELL + of_self)
    return (steps + most) / 2


def test_layers_take_their_time_once_a_pass_and_a_little_for_each_further_token(work):
    """10 layers of 1 ms in each of the 50 passes that write responses, and 0.1 ms for 7 rows of
    them, the 600 tokens of prompts, and the 1000 that target and self read; 1 layer of the draft.
    """
    replays, asked = LOADING + WRITING + READING, {"measure": "replay", "stop": ("none",)}
    assert work(**asked, speed=replace(CORES, layer=1e-3)) == replays + 50 * 0.01
    tokens = 0.001 * (50 * 7 + 600 + 1000 + 1000) + 0.0001 * 1000
    assert work(**asked, speed=replace(CORES, in_layer=1e-4)) == replays + tokens


def test_the_target_as_its_own_draft_is_timed_and_decoded_only_where_it_was_asked_for(work):
    of_self = STEPS + OF_TARGET, WITH_SELF
    asked = work(drafts=("small", "self"))
    decoding = DECODING + 2 * WITH_SELF
    assert asked == LOADING + WRITING + REPLAYING + timed(2, *of_self) + decoding
    # At three k's instead of one.
    every = 4 * (WITH_SMALL + CELL + WITH_SELF)
    assert work(measure="all") == LOADING + WRITING + REPLAYING + timed(4, *of_self) + every


# What all replays take, and all but loading of a whole sweep.
REPLAYS, WHOLE = LOADING + WRITING + REPLAYING, WRITING + REPLAYING + timed(2) + DECODING
# Workers share two loads of the draft.
SHARED = 5 + (5 + 10) + (1 + WRITING + REPLAYING) / 2


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, LOADING + WHOLE),
        ({"measure": "none"}, REPLAYS + STEPS),
        ({"measure": "replay"}, REPLAYS),
        ({"measure": "replay", "mode": "sampled"}, REPLAYS - OFF_PATH),
        ({"measure": "replay", "responses": "log"}, LOADING + REPLAYING),
        # One process for each of three candidates, in every turn; the first writes the responses.
        ({"processes": 3}, 10 * 5 + 9 * 10 + 3 + WHOLE + 2 * (timed(2) + DECODING)),
        ({"workers": 1}, 5 + LOADING + WHOLE),
        # Each of two workers loads the target; one loads the draft again to time it.
        ({"workers": 2, "measure": "replay"}, SHARED),
        ({"workers": 2}, SHARED + 1 + timed(2) + DECODING),
        # Of two, two, four and two requests; the draft is loaded in each again.
        ({"until": "settled", "measure": "replay"}, REPLAYS + 3 * 1),
    ],
)
def test_time_follows_from_sizes_and_tokens_and_from_what_is_measured_where(
    work, monkeypatch, options, seconds
):
    monkeypatch.setattr(run, "WAVE", 2)
    assert work(**options) == seconds


def test_rows_that_step_together_take_longer_and_write_more(work):
    """At two lengths over 4, 8, 12 and 16 tokens, and no prompts; then 5 requests are decoded 3
    times, so that 4 rows are filled 3 times, 4 rows at 1.3 steps.
    """
    common = 5 + 10 + WRITING + 0.1 * 100
    steps = 0.1 * 18 * (1.3 + 1.7 + 2.1 + 2.5)
    decoding = 2 * 0.1 * ((15 * 40 + 4 * 14) / 4 * 1.3 + 19 * 6)
    alone = {"concurrency": (4,), "candidates": (NGRAM,)}
    assert work(**alone, measure="none") == common + steps
    assert work(**alone) == common + (steps + decoding / 2) / 2 + decoding


def test_stages_come_in_the_order_of_the_sweep(tmp_path):
    """The second process goes back from the last candidate, and replays nothing."""
    target, draft = sheet("big", 2_000_000_000), sheet("small", 200_000_000)
    options = SweepOptions("big", ("small",), query(tmp_path), processes=2, concurrency=(1, 4))
    prepared = SimpleNamespace(
        options=options, candidates=(SMALL, NGRAM), prompt_tokens=[(60, 40)] * 10
    )
    stages = list(stages_of_decoder(prepared, target, {"small": draft}, CORES))
    work = ["replay", *["step times", "decoding"] * 2]
    order = [SMALL, NGRAM, NGRAM, SMALL]
    assert [(stage.candidate, stage.what) for stage in stages] == [
        (None, "responses"),
        *((candidate, what) for candidate in order for what in work),
    ]
    assert stages[1].seconds > stages[-5].seconds


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_a_further_token_takes_of_a_step_is_measured_on_a_cpu(dtype):
    speed = speed_of("cpu", dtype)
    assert speed.reading > 0
    assert 0 < speed.token < 10


@pytest.fixture
def told(small, monkeypatch):
    """The stages that a watcher is told of, and by which factor they are longer than planned."""
    stages = []
    monkeypatch.setattr(
        type(small.notes),
        "stage",
        lambda self, what, total, candidate=None, longer=1.0: stages.append(
            (candidate, what, longer)
        ),
    )
    return stages


def test_a_sweep_with_the_decoder_tells_of_the_stages_that_were_planned(small, told):
    planned = stages_to_come(small.prepared())
    small.sweep()
    assert len(planned) == len(told) == 7
    for stage, (candidate, what, _) in zip(planned, told, strict=True):
        assert stage.candidate == candidate
        assert what.startswith(stage.what)


def test_decoding_at_a_second_k_takes_half_as_long_again(small, told, monkeypatch):
    for ks in ([1], [1, 2]):
        monkeypatch.setattr(
            "draftbench.sweep.resume.lengths_to_decode",
            lambda *_, ks=ks: list(map(DraftLength, ks)),
        )
        small.sweep("ngram", out=f"at {ks}", measure="best")
    longer = {what: factor for _, what, factor in told if what.startswith("decoding")}
    assert longer == {"decoding at k = 1": 1.0, "decoding at k = 1, 2": 1.5}


@pytest.mark.parametrize("restarts", [1, 2])
def test_a_sweep_on_an_engine_tells_of_the_stages_that_were_planned(served, small, told, restarts):
    asked = {"ks": (2, 4, 8), "measure": "all", "measure_requests": 2, "concurrency": (1, 4)}
    serving = {"engine": "vllm", "restarts": restarts}
    planned = stages_to_come(small.prepared(serving=ServingOptions(**serving), **asked))
    served(serving=serving, **asked)
    assert [(stage.candidate, stage.what) for stage in planned] == [
        (candidate, what) for candidate, what, _ in told if what != "replay"
    ]
