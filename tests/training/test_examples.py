"""Which responses train, say when to stop, and prove: by a keyed hash of the prompt's tokens."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenes import manifest, trajectory

from draftbench.errors import UsageError
from draftbench.run_folder.folder import PrivateText, RunFolder
from draftbench.run_folder.run import read_run
from draftbench.training.examples import examples_of, other_traffic, place_of

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
    places = [names(found.train), names(found.stop), names(found.prove)]
    assert set.union(*places) == {f"r{at}" for at in range(400)}
    assert sum(map(len, places)) == 400
    for at in range(0, 400, 2):
        assert len([place for place in places if place & {f"r{at}", f"r{at + 1}"}]) == 1


@settings(max_examples=50)
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20), st.binary(min_size=32))
def test_a_prompt_is_for_the_same_in_every_run_of_a_key(prompt, key):
    assert place_of(prompt, key) == place_of(tuple(prompt), key)


def test_of_a_hundred_prompts_fifteen_prove_and_ten_stop():
    places = [place_of((at,), KEY)[0] for at in range(1000)]
    # Three standard deviations of binomials of 1000 with .15 and .1 are 34 and 28.
    assert abs(places.count("prove") - 150) < 34
    assert abs(places.count("stop") - 100) < 28


def test_no_more_are_looked_at_than_say_enough(recorded, monkeypatch):
    monkeypatch.setattr("draftbench.training.examples.LOOKED_AT", 7)
    run = recorded([((at,), (1, 2)) for at in range(200)])
    assert len(examples_of(run, KEY).stop) == 7


def test_a_response_of_one_token_has_nothing_to_draft(recorded):
    run = recorded([((at,), (1, 2)) for at in range(100)] + [((200,), (1,))])
    found = examples_of(run, KEY)
    assert "r100" not in names(found.train + found.stop + found.prove)


def test_any_first_part_of_the_training_responses_is_the_same_in_any_order_of_the_run(recorded):
    run = recorded([((at,), (1, 2)) for at in range(100)])
    train = examples_of(run, KEY).train
    digests = [place_of(response.prompt.tokens, KEY)[1] for response in train]
    assert digests == sorted(digests)


def test_a_run_with_too_few_requests_is_refused(recorded):
    run = recorded([((at,), (1, 2)) for at in range(12)])
    with pytest.raises(UsageError, match="12 requests"):
        examples_of(run, KEY)


def test_a_redacted_run_is_refused(recorded):
    run = recorded([((at,), (1, 2)) for at in range(100)])
    RunFolder(run.path).redact()
    with pytest.raises(UsageError, match="redacted"):
        examples_of(run, KEY)


def test_on_other_traffic_nothing_that_trained_or_stopped_proves(recorded):
    run = recorded([((at,), (1, 2)) for at in range(100)])
    examples = examples_of(run, KEY)
    other = recorded([((at,), (1, 2)) for at in range(50, 150)], "other")
    proving = {r.prompt.tokens[0] for r in other_traffic(other, run, examples)}
    seen = {r.prompt.tokens[0] for r in (*examples.train, *examples.stop)}
    assert proving == set(range(50, 150)) - seen
    assert set(range(100, 150)) < proving


def test_the_other_traffic_is_that_of_the_same_target(recorded):
    run = recorded([((at,), (1, 2)) for at in range(100)])
    other = recorded([((at,), (1, 2)) for at in range(100)], "other", target="another")
    with pytest.raises(UsageError, match="another target, `another`"):
        other_traffic(other, run, examples_of(run, KEY))


def test_other_traffic_that_the_training_saw_is_refused(recorded):
    run = recorded([((at,), (1, 2)) for at in range(100)])
    examples = examples_of(run, KEY)
    seen = [(tuple(r.prompt.tokens), (1, 2)) for r in examples.train]
    with pytest.raises(UsageError, match="too few"):
        other_traffic(recorded(seen, "other"), run, examples)
