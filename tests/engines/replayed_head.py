"""What an engine must count that drafts with a head of the embedded target, by its replay."""

import scenes
import torch
from scenes import EMBEDDED

from draftbench.decoder.runner import DecodeTask, HostClock
from draftbench.decoder.sampling import Uniforms
from draftbench.decoder.speculate import decode
from draftbench.drafts.built_in import HEADS
from draftbench.drafts.loading import Loading
from draftbench.measure.prompts import Prompt
from draftbench.measure.trajectories import ScoredResponse
from draftbench.models.quantize import Build, build_runner
from draftbench.models.source import ModelSource
from draftbench.records import Candidate, DraftingMode, Request, Sampling


class ReplayedHead:
    """The embedded target and a head on it, the embedded EAGLE-3 head unless another is named, in
    float32.
    """

    def __init__(self, method="eagle3", head=EMBEDDED / "head"):
        target, build = ModelSource(str(EMBEDDED / "target")), Build(torch.float32, "none", "cpu")
        self.target, _ = build_runner(target, build, None)
        self.candidate = Candidate(draft=f"{method}:head")
        of = self.candidate, ModelSource(str(head)), build, target, self.target
        self.draft, _ = HEADS[method].load(Loading(*of, DraftingMode.GREEDY))

    def matched(self, answer, k):
        """How many of k drafted tokens an answer has, by the position where a round starts."""
        prompt, tokens = tuple(answer.ask.prompt), answer.tokens
        trajectory = scenes.trajectory("r", len(tokens), prompt_tokens=len(prompt))
        request = Request(id="r", source="log:1", prompt="", max_tokens=None, sampling=Sampling())
        response = ScoredResponse(Prompt(request, prompt, answer.ask.limit), tokens, trajectory)
        (replay,) = self.draft.replay(self.candidate, [response], k)
        return replay.of_length(k).matched

    def decoded(self, answer, k, stop):
        """The tokens that the built-in decoder's rounds propose for an answer, and accept."""
        prompt, limit = answer.ask.prompt, answer.ask.limit
        drawn = Uniforms("r", 0, limit + k)
        task = DecodeTask([*prompt], limit, Sampling(), drawn, lambda output: False)
        found = decode(task, self.target, self.draft.drafter(), k, HostClock(), stop)
        assert found.tokens == list(answer.tokens)
        return found.proposed, found.accepted

    def check_rounds(self, answer, k):
        """Check the rounds of vLLM, one by one; how many there were. The last one may go on behind
        the end of the answer.
        """
        matched, at = self.matched(answer, k), 1
        rounds = (answer.counts and answer.counts.by_round) or ()
        for _, accepted in rounds:
            left = len(answer.tokens) - at
            found = matched[at - 1] if left else 0
            assert accepted == found or accepted > found == left
            at += accepted + 1
        return len(rounds)

    def sums(self, answer, k):
        """The tokens that llama.cpp proposes, none of them behind the limit, and accepts."""
        matched, at, proposed, accepted = self.matched(answer, k), 1, 0, 0
        while at < len(answer.tokens):
            room = min(k, answer.ask.limit - at - 1)
            proposed, accepted = proposed + room, accepted + min(matched[at - 1], room)
            at += min(matched[at - 1], room) + 1
        return proposed, accepted
