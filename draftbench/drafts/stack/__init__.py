"""A stack: prompt lookup and, where it finds nothing, another draft.

replay  how the replays of its two parts are put together
draft   its drafting and its timed passes
"""

from draftbench.drafts.kind import DraftKind
from draftbench.records import LOOKUP, STACK, draft_of_stack


class _Stack(DraftKind):
    def parts(self, draft: str) -> tuple[str, ...]:
        return LOOKUP, draft_of_stack(draft) or ""


KIND = _Stack("stack", "a stack", written=STACK, built_in=True)
