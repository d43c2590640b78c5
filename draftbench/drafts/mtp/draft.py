"""A target's own layers: checked, and loaded."""

from __future__ import annotations

from collections.abc import Sequence

from draftbench.drafts.heads.draft import HeadDraft
from draftbench.drafts.loading import Loading, Pairing
from draftbench.drafts.mtp.weights import build_mtp, check_mtp, mtp_obstacles
from draftbench.measure.replay import ServedTarget
from draftbench.models.source import ModelSource
from draftbench.records import ModelFacts


def check(source: ModelSource, pairing: Pairing) -> tuple[str, ...]:
    """By the target's configuration and the names in its files."""
    return check_mtp(source)


def misfits(target: ModelSource, source: ModelSource) -> tuple[Sequence[str], Sequence[str]]:
    """They are the target's own, so that they fit it."""
    return (), list(mtp_obstacles(target))


def load(loading: Loading) -> tuple[HeadDraft, ModelFacts]:
    """Load them beside the target's other layers."""
    target = loading.runner
    assert not isinstance(target, ServedTarget)
    head, facts = build_mtp(loading.source, loading.build, loading.candidate.draft, target)
    return HeadDraft(head, target), facts
