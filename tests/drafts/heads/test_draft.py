"""The embedded head: one pass along responses against drafting and decoding, sound and faulty."""

from itertools import chain
from types import SimpleNamespace

import msgspec
import pytest
import torch
from scenes import lengths

from draftbench.acceptance.faults import contradiction
from draftbench.decoder.attention import LaterDepths
from draftbench.decoder.runner import HiddenStates, HostClock
from draftbench.drafts.eagle3.draft import build_head, check_eagle
from draftbench.drafts.eagle3.head import EagleHead
from draftbench.drafts.heads.draft import HeadDraft, replay_head
from draftbench.drafts.heads.head import Drafted, HeadDrafter
from draftbench.errors import ModelError
from draftbench.measure.candidate import LoadedCandidate, MeasurementContext
from draftbench.measure.decoding import decode_requests
from draftbench.measure.prompts import TargetText
from draftbench.measure.trajectories import PromptSample
from draftbench.models.quantize import Build
from draftbench.models.source import ModelSource
from draftbench.records import NEAR_TIE_MARGIN, Candidate, DraftingMode, NGramSizes
from draftbench.traffic import TrafficQuery, load

HEAD = Candidate(draft="eagle3:head")
LAYERS, DEPTHS = 8, 6  # of the target, and of the replay


@pytest.fixture(scope="module")
def loaded(text_source, target):
    head = ModelSource(text_source.spec.removesuffix("target") + "head")
    (said,) = check_eagle(text_source, head)
    assert said.startswith("its draft vocabulary covers 1,024 of the target's 2,048 tokens")
    measurement = MeasurementContext(
        target=target,
        text=TargetText(text_source),
        mode=DraftingMode.GREEDY,
        ks=(DEPTHS,),
        lookup=NGramSizes(2, 1),
        dtype="float32",
        clock=HostClock(),
        process="process",
        digest=str,
    )
    build = Build(torch.float32, "none", "cpu")
    head, _ = build_head(head, build, HEAD.draft, target, LAYERS)
    return LoadedCandidate(HEAD, HeadDraft(head, target), measurement)


def replayed(loaded, make, requests, tokens):
    """The target's responses to held-out requests, and the head's replays along them."""
    text, target = loaded.measurement.text, loaded.measurement.target
    asked = load(TrafficQuery("suite:completion", b"key", requests)).requests
    prompts = [PromptSample(text.prompt(request, tokens, 512), 0) for request in asked]
    responses = make.written(prompts, target, text)
    return responses, loaded.replay(responses)


@pytest.fixture(scope="module")
def few(loaded, make):
    return replayed(loaded, make, 3, 24)


@pytest.mark.parametrize(
    ("requests", "tokens", "ks"),
    [(3, 24, (1, 4)), pytest.param(24, 48, range(1, 7), marks=pytest.mark.slow)],
)
def test_decoding_goes_through_the_rounds_of_the_replay_and_writes_plain_text(
    loaded, make, requests, tokens, ks
):
    """Every round of every request at every k; in float32 none of them is at a near tie."""
    responses, records = replayed(loaded, make, requests, tokens)
    along = {record.key: record.matched for record in records}
    limits = {response.key: response.prompt.limit for response in responses}
    rounds = more = 0
    for row in chain.from_iterable(decode_requests(loaded, responses, lengths(*ks), 1)):
        assert row.first_difference is None
        at = 1
        for proposed, accepted in zip(row.proposed, row.accepted, strict=True):
            room = min(row.k, limits[row.key] - at - 1)
            assert proposed == room
            assert accepted == (min(along[row.key][at - 1], room) if room else 0)
            rounds, more, at = rounds + (room > 0), more + accepted, at + accepted + 1
    assert more > rounds / 4


def replay_of(drafted, response, loaded):
    """The replay of a head that drafts this along a response."""
    head = SimpleNamespace(reads=loaded.draft.reads, along=lambda *_, **how: [drafted])
    target, window = loaded.measurement.target, drafted.tokens.shape[1]
    return replay_head(response, HEAD, head, target, window, stops=False)


def test_logits_that_are_no_numbers_are_refused(loaded, few):
    """Their margins could not be kept, and the whole run could not be read."""
    (response, *_), _ = few
    rows = len(response.tokens) - 1
    drafted = Drafted(torch.zeros(rows, 2, dtype=torch.long), torch.full((rows, 2), float("nan")))
    with pytest.raises(ModelError, match=r"^the head's logits are NaN or infinite"):
        replay_of(drafted, response, loaded)


def test_states_of_the_target_that_are_no_numbers_are_not_the_heads_fault(loaded, few, monkeypatch):
    (response, *_), _ = few
    joined = HiddenStates.joined
    monkeypatch.setattr(HiddenStates, "joined", lambda self: joined(self) * float("nan"))
    with pytest.raises(ModelError, match=r"^the target's hidden states are NaN or infinite"):
        replay_head(response, HEAD, loaded.draft.head, loaded.measurement.target, DEPTHS)


def test_how_sure_a_head_was_is_known_up_to_its_first_wrong_token(loaded, few):
    (response, *_), _ = few
    rows = len(response.tokens) - 1
    right = torch.tensor([*response.tokens[1:], 0])[:rows]
    margins = torch.tensor([[2.0, 0.7512, 0.1]]).repeat(rows, 1)
    tokens = torch.stack([right, right + 1, right], dim=1)
    record = replay_of(Drafted(tokens, margins), response, loaded)
    assert set(record.matched[:-2]) == {1}
    assert set(record.margin[:-2]) == {0.751}


def test_how_sure_a_head_is_is_recorded_from_every_start_where_rounds_may_stop(loaded, few):
    """At every depth; without rules to stop by nothing else changes."""
    responses, records = few
    unasked = loaded.draft.replay(HEAD, responses, DEPTHS, stops=False)
    for record, without in zip(records, unasked, strict=True):
        assert record.confidences.lengths == record.proposed == (DEPTHS,) * len(record.matched)
        assert msgspec.structs.replace(record, confidences=None) == without


def stale_keys(monkeypatch):
    """A drafted token that was accepted is not read again: its key is of a later depth."""

    def keep(self, row, length, states=None):
        kept = torch.cat([self._unread[row], states])[: length - self.cache.lengths[row]]
        self.cache.lengths[row], self._unread[row] = length - 1, kept[-1:]

    monkeypatch.setattr(HeadDrafter, "keep", keep)


def in_later_depths(monkeypatch, change):
    """Change the steps of a head to which no states of the target are entering."""
    step, entering, entered = EagleHead.step, EagleHead.entering, []

    def enter(self, states):
        entered.append(states)
        return entering(self, states)

    def changed(self, *given):
        if entered:
            entered.clear()
            return step(self, *given)
        return change(step, self, *given)

    monkeypatch.setattr(EagleHead, "entering", enter)
    monkeypatch.setattr(EagleHead, "step", changed)


def one_position_behind(monkeypatch):
    """Later depths overwrite the key of the depth before them, at its position."""

    def behind(step, self, tokens, left, cache, counts):
        before = cache.lengths
        cache.lengths = [length - count for length, count in zip(before, counts, strict=True)]
        found = step(self, tokens, left, cache, counts)
        cache.lengths = [length + count for length, count in zip(before, counts, strict=True)]
        return found

    in_later_depths(monkeypatch, behind)


def states_behind_the_last_norm(monkeypatch):
    def normed(step, self, tokens, left, cache, counts):
        return step(self, tokens, self.norms["last"](left), cache, counts)

    in_later_depths(monkeypatch, normed)


def swapped_layers(monkeypatch):
    begin = HeadDrafter.__init__

    def swapped(self, head):
        begin(self, head)
        self.reads = (head.reads[1], head.reads[0], head.reads[2])

    monkeypatch.setattr(HeadDrafter, "__init__", swapped)


def wrong_ids(monkeypatch):
    """`d2t` is read as if it held ids, which GGUF files hold, and not offsets."""
    propose = HeadDrafter.propose

    def absolute(self, *asked):
        ids = self.head.target_ids
        self.head.target_ids = ids - torch.arange(len(ids))
        try:
            return propose(self, *asked)
        finally:
            self.head.target_ids = ids

    monkeypatch.setattr(HeadDrafter, "propose", absolute)


FAULTS = stale_keys, one_position_behind, states_behind_the_last_norm, swapped_layers, wrong_ids


@pytest.mark.slow  # 600 rounds: it changes one in a hundred
def test_a_replay_whose_position_does_not_advance_with_the_depth_is_contradicted(
    loaded, make, monkeypatch
):
    attend = LaterDepths.attend

    def stuck(self, layer, qkv):
        self.place = self.place - 1
        return attend(self, layer, qkv)

    responses, sound = replayed(loaded, make, 14, 56)
    monkeypatch.setattr(LaterDepths, "attend", stuck)
    broken = loaded.replay(responses)
    rows = list(chain.from_iterable(decode_requests(loaded, responses, lengths(1, 2, 3, 4), 1)))
    drafted = [row for row in rows if row.k]
    for records, contradicts in ((sound, False), (broken, True)):
        pairs = [(r.trajectory, record) for r, record in zip(responses, records, strict=True)]
        found = contradiction(pairs, drafted, NEAR_TIE_MARGIN["float32"], by_position=True)
        assert (found is not None) is contradicts


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_a_fault_of_the_drafter_contradicts_the_replay(loaded, few, monkeypatch, fault):
    responses, records = few
    if fault is not None:
        fault(monkeypatch)
    rows = list(chain.from_iterable(decode_requests(loaded, responses, lengths(4), 1)))
    assert {row.first_difference for row in rows} == {None}  # the text is the target's all the same
    pairs = [(r.trajectory, record) for r, record in zip(responses, records, strict=True)]
    drafted = [row for row in rows if row.k]
    found = contradiction(pairs, drafted, NEAR_TIE_MARGIN["float32"], by_position=True)
    assert (found is None) == (fault is None)
