"""`functools.cached_property` for methods with arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

Owner = TypeVar("Owner")
Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


class remembered(Generic[Owner, Arguments, Answer]):  # noqa: N801 - used as a decorator
    """Compute a method once for the same arguments; its object keeps the results.

    A function counts as a method of its first argument.
    """

    def __init__(self, method: Callable[Concatenate[Owner, Arguments], Answer]) -> None:
        self._method, self.__doc__ = method, method.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> remembered[Owner, Arguments, Answer]: ...
    @overload
    def __get__(self, owner: Owner, kind: type) -> Callable[Arguments, Answer]: ...
    def __get__(self, owner: Owner | None, kind: type) -> Any:
        return self if owner is None else self._answers_of(owner)

    def __call__(
        self, owner: Owner, /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Answer:
        return self._answers_of(owner)(*args, **kwargs)

    def _answers_of(self, owner: Owner) -> Callable[Arguments, Answer]:
        name, known = self._method.__name__, owner.__dict__
        # Under its own name, so that Python finds it there before it asks `__get__`.
        return known.get(name) or known.setdefault(name, cache(partial(self._method, owner)))
