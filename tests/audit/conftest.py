"""Runs whose decoder drafts with a planted fault, and whose replays do not."""

from copy import copy
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec
import pytest
from audit import made
from scenes import EMBEDDED
from sweep.conftest import Notes, made_up_costs, options

from draftbench.audit.audit import audit
from draftbench.audit.replaying import replaying
from draftbench.decoder.runner import HostClock
from draftbench.decoder.speculate import decode
from draftbench.drafts.lookup.draft import LookupDraft
from draftbench.drafts.stack.draft import StackDraft
from draftbench.measure.prompts import TargetText
from draftbench.measure.trajectories import recorded_responses, task_of
from draftbench.models.quantize import Build, build_runner
from draftbench.records import NGramSizes
from draftbench.run_folder.run import read_run
from draftbench.sweep import prepare, worker
from draftbench.sweep.measure import measure_sweep
from draftbench.traffic import TrafficQuery

with pytest.MonkeyPatch.context() as on_path:
    on_path.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    from block_kin import make

# Beside the embedded ones some for faults that these cannot have, with how they are asked for.
DRAFTS = {
    "head": lambda folder: (f"eagle3:{EMBEDDED / 'head'}", {}),
    "block": lambda folder: (f"dflash:{EMBEDDED / 'block'}", {}),
    "draft": lambda folder: (str(EMBEDDED / "draft"), {}),
    "foreign": lambda folder: (str(made.with_a_pad(folder / "foreign")), {}),
    "stack": lambda folder: (f"ngram+{EMBEDDED / 'draft'}", {}),
    "own table": lambda folder: (f"dflash:{made.with_a_table(folder / 'own')}", {}),
    "biased": lambda folder: (f"dspark:{make(folder / 'biased', 'dspark')}", {}),
    "small": lambda folder: (str(made.of_small_queries(folder / "small")), {}),
    "chat": lambda folder: (
        str(EMBEDDED / "draft"),
        {
            "target": str(made.with_a_template(folder / "chat")),
            "traffic": TrafficQuery("suite:completion", b"key", REQUESTS, as_chat=True),
        },
    ),
}
K, REQUESTS, TOKENS = 3, 8, 32


class Swept:
    """A run of one of the embedded drafts, and what it loaded."""

    def __init__(self, which, dtype, requests, folder):
        how = {"ks": (K,), "requests": requests, "measure_requests": requests, "dtype": dtype}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(worker, "time_steps", made_up_costs)
            draft, more = DRAFTS[which](folder)
            asked = options(draft, max_new_tokens=TOKENS, **how | more)
            notes = Notes()
            prepared = prepare(asked, "draftbench sweep", notes)
            self.run = read_run(measure_sweep(prepared, folder / "run", notes))
        self.candidate = self.run.candidates[-1]  # behind prompt lookup, in a stack
        self.loaded = replaying(self.run, self.candidate)
        self.target = getattr(self.loaded.runner, "runner", None)
        if self.target is None:
            build = Build(self.loaded.build.dtype, "none", "cpu")
            self.target, _ = build_runner(self.loaded.target, build, None)
        self.responses = {each.key: each for each in recorded_responses(self.run, "to decode")}

    def decoded(self, fault):
        """The run, decoded with what a fault makes of the draft and of the ids of a prompt."""
        draft = fault(copy(self.loaded.draft), self.loaded)
        if self.candidate.looks_up:
            draft = StackDraft(LookupDraft(NGramSizes(4, 2), "cpu"), draft)
        text, rows = TargetText(self.loaded.target), []
        for row in self.run.decodes:
            if row.candidate == self.candidate:
                response = self.responses[row.key]
                task = task_of(response.prompt, row.sample, text)
                drafter = draft.drafter()
                output = decode(task, self.target, drafter, row.k, HostClock(), row.stop)
                found = {
                    name: tuple(getattr(output, name))
                    for name in ("proposed", "accepted", "cut", "drafted")
                }
                times = dict.fromkeys(("draft_seconds", "verify_seconds"), (1.0,) * len(output.cut))
                difference = response.first_difference(output.tokens)
                rows.append(
                    msgspec.structs.replace(row, first_difference=difference, **found, **times)
                )
        return replace(self.run, decodes=tuple(rows))


@pytest.fixture(scope="session")
def swept(tmp_path_factory):
    """The run of one of the embedded drafts, made once."""

    @cache
    def run(which, dtype="float32", requests=REQUESTS):
        return Swept(which, dtype, requests, tmp_path_factory.mktemp("swept"))

    return run


@pytest.fixture
def audited(swept):
    """What the auditor says of a run with a planted fault."""

    def found(which, fault=None, dtype="float32", requests=REQUESTS, **how):
        of = swept(which, dtype, requests)
        run = of.run if fault is None else of.decoded(fault)
        (only,) = audit(run, [of.candidate], **how).candidates
        return only

    return found
