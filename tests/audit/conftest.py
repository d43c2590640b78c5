"""Runs whose decoder drafts with a planted fault, and whose replays do not."""

from copy import copy

import pytest
from sweep.conftest import small as small  # noqa: PLC0414
from scenes import EMBEDDED

from draftbench.audit.audit import audit
from draftbench.drafts.block.draft import BlockDraft
from draftbench.drafts.heads.draft import HeadDraft
from draftbench.drafts.model.draft import ModelDraft
from draftbench.run_folder.run import read_run

DRAFTS = {
    "head": (f"eagle3:{EMBEDDED / 'head'}", HeadDraft),
    "block": (f"dflash:{EMBEDDED / 'block'}", BlockDraft),
    "draft": (str(EMBEDDED / "draft"), ModelDraft),
}


@pytest.fixture
def decoded(small, monkeypatch):
    """The folder of a run in which one of the embedded drafts is replayed as it is, and drafts as
    `fault` makes of it, which is given the loaded draft.
    """

    def run(which, fault=None, requests=6, tokens=32, ks=(3,), dtype="float32", quants=("none",)):
        spec, kind = DRAFTS[which]
        with monkeypatch.context() as planted:
            if fault is not None:
                sound = kind.drafter
                planted.setattr(kind, "drafter", lambda self: sound(fault(copy(self))))
            return small.sweep(
                spec,
                ks=ks,
                requests=requests,
                measure_requests=requests,
                max_new_tokens=tokens,
                dtype=dtype,
                quants=quants,
            )

    return run


@pytest.fixture
def audited(decoded):
    """What the auditor says of such a run's only candidate."""

    def found(which, fault=None, weights=None, **how):
        run = read_run(decoded(which, fault, **how))
        (only,) = audit(run, run.candidates, weights=weights).candidates
        return only

    return found


def on_head(**fields):
    """A fault: fields of a head are others, each computed from the head."""

    def fault(draft):
        head = copy(draft.head)
        for name, value in fields.items():
            setattr(head, name, value(draft.head))
        draft.head = head
        return draft

    return fault
