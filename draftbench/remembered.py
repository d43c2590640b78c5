"""`functools.cached_property` for methods with arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

Owner = TypeVar("Owner")
Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")
Method = Callable[Concatenate[Owner, Arguments], Answer]


def remembered(method: Method[Owner, Arguments, Answer]) -> Method[Owner, Arguments, Answer]:
    """Compute a method once for the same arguments; its object keeps the answers."""

    @wraps(method)
    def once(owner: Owner, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        answers = owner.__dict__.setdefault(f"answers of {method.__name__}", {})
        asked = args, tuple(kwargs.items())
        if asked not in answers:
            answers[asked] = method(owner, *args, **kwargs)
        return answers[asked]

    return once
