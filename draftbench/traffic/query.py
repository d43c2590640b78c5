"""Which traffic a command reads, and how: flags of `sweep` and `traffic`."""

from __future__ import annotations

from dataclasses import dataclass

from draftbench.flags import in_traffic


@dataclass(frozen=True)
class TrafficQuery:
    """Which traffic to read, and how. Fields are dotted paths; None: the usual places."""

    source: str
    key: bytes  # of the keyed hashes: the same key gives the same ids, and so the same sample
    sample: int | None = None  # how many requests are chosen; None: all
    seed: int = 0  # of the sample
    segment_by: str | None = in_traffic(None, "The field of a row that names its segment.", "FIELD")
    prompt_field: str | None = in_traffic(
        None, "The field of a row that holds the prompt.", "FIELD"
    )
    response_field: str | None = in_traffic(
        None, "The field of a row that holds the logged answer.", "FIELD"
    )
    as_chat: bool = in_traffic(
        False, "Treat a plain prompt as a user's message, as vLLM's custom data sets do."
    )
    skip_bad: bool = in_traffic(
        False, "Skip and count rows that cannot be read, instead of stopping at the first."
    )
    # The kinds of structured output that can be decoded; rows with others are left out.
    constraints: frozenset[str] = frozenset()

    @property
    def on_hub(self) -> bool:
        """Whether the source is a data set on the hub, which is downloaded unless it is cached."""
        return self.source.startswith("hf:")
