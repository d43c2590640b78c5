"""A remembered method runs once for the same arguments, and for each object."""

from dataclasses import dataclass, field

from draftbench.remembered import remembered


@dataclass(frozen=True, eq=False)
class Adder:
    first: int
    asked: list[int] = field(default_factory=list)

    @remembered
    def plus(self, second: int) -> int:
        self.asked.append(second)
        return self.first + second


def test_it_runs_once_for_the_same_arguments():
    one = Adder(1)
    assert [one.plus(2), one.plus(3), one.plus(2)] == [3, 4, 3]
    assert one.asked == [2, 3]


def test_each_object_has_its_own_answers():
    assert (Adder(1).plus(2), Adder(5).plus(2)) == (3, 7)
