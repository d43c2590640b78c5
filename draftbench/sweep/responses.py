"""Prompts → the target's responses in the run folder, group by group; read back from there, so that
of the traffic memory holds the prompts and one entry a response.

A group is made, scored and kept whole or not at all: its composition follows from the plan alone,
so that a run that was interrupted computes what an uninterrupted one would have. The longest
prompts come first: what does not fit shows early, and the time left is not underestimated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from draftbench.decoder.runner import Runner, clock_for
from draftbench.errors import TrafficError
from draftbench.measure.candidate import Material
from draftbench.measure.prompts import Prompt, TextSide
from draftbench.measure.trajectories import Given, LogCheck, generate, logged, score
from draftbench.records import Observation
from draftbench.run_folder.folder import Key, PrivateDraft, PrivateText, RunFolder
from draftbench.sweep.preparation import Prepared

GROUP = 16
SHORTEST_MEASURED = 8

Keep = Callable[[Sequence[Observation], Sequence[PrivateText] | Sequence[PrivateDraft]], None]


class Author(Protocol):
    """Who writes and scores responses."""

    target: Runner
    text: TextSide

    def digest(self, tokens: tuple[int, ...]) -> str:
        """The keyed hash of an output."""
        ...


class Responses:
    """What the target answered to every request of a sweep."""

    def __init__(self, prepared: Prepared, folder: RunFolder) -> None:
        tasks = [
            (prompt, sample)
            for prompt in prepared.prompts
            for sample in range(prepared.options.samples)
        ]
        tasks.sort(key=lambda task: (-len(task[0].tokens), task[0].request.id, task[1]))
        self._prompts = {_key(task): task[0] for task in tasks}
        self._plan = [tasks[at : at + GROUP] for at in range(0, len(tasks), GROUP)]
        self._texts, self._trajectories = folder.texts(), folder.trajectories()
        self._lengths: dict[Key, tuple[int, int]] = {}
        self._origin = prepared.options.responses
        self._check = LogCheck()
        self._read_on()

    def missing(self) -> int:
        """How many responses are still to be made."""
        return sum(len(group) for group in self._plan if not self._whole(group))

    def make(self, author: Author, keep: Keep) -> None:
        """Write and score what is missing.

        Args:
            keep: writes records and, before them, their private part.

        Raises:
            TrafficError: nothing can be drafted, or logged responses are not the target's.
        """
        for group in self._plan:
            if not self._whole(group):
                made = score(self._given(group, author), author.target)
                keep([trajectory for _, trajectory in made], [text for text, _ in made])
                self._read_on()
        if self._origin == "log":
            for _, text, trajectory in (item for group in self.groups() for item in group):
                self._check.add(text, trajectory)
            _object(self._check.objection())
        if not any(output > 1 for _, output in self._lengths.values()):
            raise TrafficError(
                "no response is longer than one token, so none has a token to draft",
                hint="raise the limits, or look at the prompts: the target ends at once",
            )

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Prompt and output tokens of every response that has a token to draft."""
        return [span for span in self._lengths.values() if span[1] > 1]

    @property
    def too_short(self) -> int:
        """Responses that have none."""
        return len(self._prompts) - len(self.spans)

    def groups(self) -> Iterator[list[Material]]:
        """The responses that have a token to draft, read from disk a group at a time."""
        for group in self._plan:
            keys = [_key(task) for task in group]
            found = [self._material(key) for key in keys if self._lengths.get(key, (0, 0))[1] > 1]
            if found:
                yield found

    def longest(self) -> Material:
        """The response with the most tokens, its prompt included."""
        return self._material(max(self._lengths, key=lambda key: sum(self._lengths[key])))

    def chosen(self, count: int) -> list[Material]:
        """Up to `count` responses to decode with a watch: long enough, in an order that no segment
        or length decides.
        """
        drafted = [key for key, (_, output) in self._lengths.items() if output > 1]
        long = [key for key in drafted if self._lengths[key][1] >= SHORTEST_MEASURED]
        order = sorted(long or drafted, key=lambda key: (key[1], key[0]))
        return [self._material(key) for key in order[:count]]

    def _given(self, group: Sequence[tuple[Prompt, int]], author: Author) -> list[Given]:
        """A group's responses, written now or taken from the log."""
        if self._origin == "log":
            found = [(task, logged(task[0], author.text)) for task in group]
        else:
            clock = clock_for(author.target.device)
            made = generate(group, author.target, author.text, clock)
            found = list(zip(group, made, strict=True))
        return [
            Given(prompt, sample, answer[0], answer[1], self._origin, author.digest(answer[0]))
            for (prompt, sample), answer in found
            if answer is not None
        ]

    def _read_on(self) -> None:
        """Take note of what was appended; a text without its record does not count."""
        for _ in self._texts.read_on():
            pass
        for trajectory in self._trajectories.read_on():
            key = (trajectory.request, trajectory.sample)
            if key in self._texts and key in self._prompts:
                self._lengths[key] = trajectory.prompt_tokens, trajectory.output_tokens

    def _whole(self, group: Sequence[tuple[Prompt, int]]) -> bool:
        return all(_key(task) in self._lengths for task in group)

    def _material(self, key: Key) -> Material:
        return self._prompts[key], self._texts[key], self._trajectories[key]


def _object(objection: str | None) -> None:
    if objection is not None:
        raise TrafficError(
            f"the logged responses are not this target's: {objection}",
            hint="let the target answer itself: `--responses target`",
        )


def _key(task: tuple[Prompt, int]) -> Key:
    return task[0].request.id, task[1]
