"""Which responses train, validate and test: by a keyed hash of the prompt's tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenes import manifest, trajectory

from draftbench.errors import UsageError
from draftbench.run_folder.folder import PrivateText, RunFolder
from draftbench.run_folder.run import read_run
from draftbench.training.examples import (
    examples_of,
    first_of_near,
    other_traffic,
    place_of,
    prompt_of,
)

KEY = b"k" * 32


@pytest.fixture
def recorded(tmp_path):
    """The run of some responses, each with its prompt and its tokens."""

    def made(responses, name="run", **changes):
        folder = RunFolder.create(tmp_path / name, manifest(**changes))
        with folder.writer() as writer:
            for at, (prompt, tokens) in enumerate(responses):
                name = f"r{at}"
                writer.append([trajectory(name, len(tokens), prompt_tokens=len(prompt))])
                text = PrivateText(request=name, sample=0, prompt=prompt, tokens=tokens, log_p=())
                writer.append([text])
        return read_run(folder)

    return made


def names(responses):
    return {response.trajectory.request for response in responses}


def test_every_response_has_one_place_and_equal_prompts_share_it(recorded):
    run = recorded([((at // 2, 7), (1, 2, 3)) for at in range(400)])
    found = examples_of(run, KEY)
    places = [names(found.train), names(found.validation), names(found.test)]
    assert set.union(*places) == {f"r{at}" for at in range(400)}
    assert sum(map(len, places)) == 400
    for at in range(0, 400, 2):
        assert len([place for place in places if place & {f"r{at}", f"r{at + 1}"}]) == 1


def test_of_a_hundred_prompts_fifteen_are_for_testing_and_ten_for_validation():
    places = [place_of((at,), KEY) for at in range(1000)]
    # Three standard deviations of binomials of 1000 with .15 and .1 are 34 and 28.
    assert abs(places.count("test") - 150) < 34
    assert abs(places.count("validation") - 100) < 28


def prompts_of(count, length=40):
    """Unlike each other in every token."""
    return [tuple(range(at * length, (at + 1) * length)) for at in range(1, count + 1)]


def test_the_turns_of_a_conversation_and_a_prompt_with_another_word_are_near():
    """By hand: of 33 pieces of 40 tokens, the word in the middle is in 8; 25 are shared."""
    short, *others = prompts_of(100)
    turn, longer = (*short, *range(50)), (*short, *range(90))
    word = (*short[:20], 7, *short[21:])
    first = first_of_near([longer, *others, word, turn, short])
    assert {first[each] for each in (short, turn, longer, word)} == {word}
    assert [first[each] for each in others] == others


@pytest.mark.parametrize(("equal", "near"), [(20, False), (30, True)])
def test_prompts_are_near_if_half_of_their_pieces_are_equal(equal, near):
    """By hand: of 33 pieces, the first 20 tokens hold 13, the first 30 hold 23."""
    one, other, *rest = prompts_of(100)
    other = (*one[:equal], *other[equal:])
    first = first_of_near([one, other, *rest])
    assert (first[other] == one) is near


def test_what_many_prompts_begin_with_makes_none_of_them_near():
    system = tuple(range(10**6, 10**6 + 300))
    prompts = [system + each for each in prompts_of(100)]
    assert first_of_near(prompts) == {each: each for each in prompts}


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12).map(tuple), min_size=1))
def test_the_first_of_near_prompts_is_the_same_in_any_order_and_none_follows_it(prompts):
    first = first_of_near(prompts)
    assert first == first_of_near(reversed(prompts))
    assert first.keys() == set(prompts)
    assert all(each <= prompt and first[each] == each for prompt, each in first.items())


def test_near_prompts_have_one_place_and_prove_nothing_on_other_traffic(recorded):
    turns = [(prompt[:end], (1, 2)) for prompt in prompts_of(100) for end in (20, 30, 40)]
    run = recorded(turns)
    found = examples_of(run, KEY)
    beginnings = [
        {prompt_of(r)[:20] for r in each} for each in (found.train, found.validation, found.test)
    ]
    assert sum(map(len, beginnings)) == 100
    other = recorded([((*prompt, 5), (1, 2)) for prompt in prompts_of(200)], "other")
    proving = {prompt_of(r)[:20] for r in other_traffic(other, run, found)}
    assert proving.isdisjoint(beginnings[0] | beginnings[1])
    assert len(proving) == 100 + len(beginnings[2])


def test_no_more_are_looked_at_than_say_enough_and_none_of_one_token(recorded, monkeypatch):
    monkeypatch.setattr("draftbench.training.examples.LOOKED_AT", 7)
    found = examples_of(recorded([((at,), (1, 2)) for at in range(200)] + [((200,), (1,))]), KEY)
    assert len(found.validation) == 7
    assert "r200" not in names(found.train + found.validation + found.test)


def test_any_first_part_of_the_training_responses_is_the_same_in_any_order_of_the_run(recorded):
    run = recorded([((at,), (1, 2)) for at in range(100)])
    train = examples_of(run, KEY).train
    back = recorded([((at,), (1, 2)) for at in reversed(range(100))], "reversed")
    assert train
    assert [prompt_of(r) for r in examples_of(back, KEY).train] == [prompt_of(r) for r in train]


def test_a_run_with_too_few_requests_or_without_texts_is_refused(recorded):
    of_one_token = recorded([((at,), (1,)) for at in range(100)], "of one token")
    with pytest.raises(UsageError, match="the run has 0"):
        examples_of(of_one_token, KEY)
    run = recorded([((at,), (1, 2)) for at in range(12)])
    with pytest.raises(UsageError, match="the run has 12"):
        examples_of(run, KEY)
    RunFolder(run.path).redact()
    with pytest.raises(UsageError, match="redacted"):
        examples_of(run, KEY)


def test_other_traffic_is_of_the_same_target_and_not_what_the_training_saw(recorded):
    run = recorded([((at,), (1, 2)) for at in range(100)])
    examples = examples_of(run, KEY)
    other = recorded([((at,), (1, 2)) for at in range(50, 150)], "other")
    seen = {r.prompt.tokens[0] for r in (*examples.train, *examples.validation)}
    proving = {r.prompt.tokens[0] for r in other_traffic(other, run, examples)}
    assert proving == set(range(50, 150)) - seen
    with pytest.raises(UsageError, match="too few requests that the training does not see"):
        other_traffic(recorded([((at,), (1, 2)) for at in seen], "seen"), run, examples)
    with pytest.raises(UsageError, match="another target, `another`"):
        other_traffic(recorded([((1,), (1, 2))], "another", target="another"), run, examples)
