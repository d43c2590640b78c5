"""A watcher of sweeps that shows nothing."""

from draftbench.records import Candidate


class Silence:
    def stage(
        self, what: str, total: int, candidate: Candidate | None = None, longer: float = 1.0
    ) -> None: ...

    def advance(self, units: int = 1) -> None: ...

    def recorded(self, records: object) -> None: ...

    def note(self, text: str, *, always: bool = False) -> None: ...
