"""Writes a run of many simulated requests and six drafts, as a sweep would write it.

    python scripts/large_run.py FOLDER 10000

Responses have 300 tokens on average, in four segments, half of them at temperature 0; 24 are
decoded at every k. 10,000 requests take 430 MB.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
from simulated_runs import DRAFTS, Scenario, World, manifest, replay, response

from draftbench.acceptance.rounds import Floats
from draftbench.records import DraftingMode, Replay, Sampling, Trajectory
from draftbench.run_folder.folder import RunFolder

TOKENS, SEGMENTS, DECODED, AT_ONCE = 300, 4, 24, 64
SIX = Scenario(
    decoded=(DECODED,) * 6, promise=(1.0, 0.97, 0.95, 0.9, 0.85, 0.8), ks=tuple(range(1, 9))
)


def rounded(values: Floats) -> tuple[float, ...]:
    """Numbers as a sweep writes them."""
    return tuple(np.round(values, 3).tolist())


class Traffic:
    """Requests, and how often each draft is accepted along their responses."""

    def __init__(self, requests: int) -> None:
        self.generator = np.random.default_rng(requests)
        lengths = np.clip(self.generator.gamma(4, TOKENS / 4, requests), 2, None).astype(int)
        self.responses = [self._response(at, int(n)) for at, n in enumerate(lengths)]

    @property
    def shards(self) -> Iterator[Sequence[Trajectory]]:
        """The responses that are appended at once."""
        for at in range(0, len(self.responses), AT_ONCE):
            yield self.responses[at : at + AT_ONCE]

    def _response(self, at: int, length: int) -> Trajectory:
        return msgspec.structs.replace(
            response(f"{at:08}", length),
            segment=f"segment {at % SEGMENTS}",
            sampling=Sampling(temperature=0.8 * (at // SEGMENTS % 2)),
        )

    def scored(self, one: Trajectory) -> Trajectory:
        """A response with the margins of its tokens."""
        margins = rounded(self.generator.exponential(4, one.output_tokens))
        return msgspec.structs.replace(one, margins=margins)

    def replay(self, draft: int, one: Trajectory) -> Replay:
        """What a draft would have proposed; above temperature 0 tokens are accepted in part."""
        positions = one.output_tokens - 1
        likely = self.generator.random(positions) < 0.8 - 0.03 * draft
        accept = likely * (self.generator.random(positions) if one.sampling.temperature else 1.0)
        return msgspec.structs.replace(
            replay(DRAFTS[draft], one, ()),
            mode=DraftingMode.SAMPLED,
            accept=rounded(accept),
            confidence=rounded(self.generator.random(positions)),
            margin=rounded(self.generator.exponential(3, positions)),
            rank=tuple((~likely * self.generator.geometric(0.3, positions)).tolist()),
        )

    def accepted(self, replayed: Replay) -> list[bool]:
        """Whether each token is accepted when the response is decoded."""
        luck = self.generator.random(len(replayed.accept))
        return (luck < np.array(replayed.accept)).tolist()


def write(folder: Path, requests: int) -> None:
    """The run folder."""
    traffic, world = Traffic(requests), World(SIX, np.random.default_rng(0))
    asked = manifest(SIX)
    question = msgspec.structs.replace(asked.question, mode=DraftingMode.SAMPLED)
    run = RunFolder.create(folder, msgspec.structs.replace(asked, question=question))
    with run.writer() as writer:
        for shard in traffic.shards:
            writer.append(map(traffic.scored, shard))
        for draft, candidate in enumerate(DRAFTS):
            decoded: dict[str, list[bool]] = {}
            for shard in traffic.shards:
                replays = [traffic.replay(draft, one) for one in shard]
                writer.append(replays)
                few = replays[: DECODED - len(decoded)]
                decoded |= {each.request: traffic.accepted(each) for each in few}
            writer.append(world.costs(candidate, world.steps[draft], None))
            writer.append(world.decodes(draft, traffic.responses[:DECODED], decoded, 1))
        run.note_sweep(run.manifest, None)


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]))
