"""What a suffix tree proposes: by texts made for each rule, and as the rule written out does."""

import pytest
from drafts.suffix.eager import Counted
from hypothesis import given
from hypothesis import strategies as st

from draftbench.drafts.suffix.rule import BUILT_IN_SUFFIX, SuffixRule
from draftbench.drafts.suffix.tree import Place, SuffixTree, best_of


def tree_of(*texts, rule=BUILT_IN_SUFFIX, base=None):
    """The last text may still grow."""
    tree = SuffixTree(rule, base)
    for number, text in enumerate(texts):
        if number:
            tree.finish()
        tree.extend(text)
    return tree


def proposals(trees, context, ks):
    places = [Place(tree) for tree in trees]
    for place in places:
        place.follow(list(context))
    return best_of(places, ks)


def proposed(tree, context, k):
    return list(proposals([tree], context, [k])[0])


@pytest.mark.parametrize(
    ("text", "k", "expected"),
    [
        # After `1 2`, which is at the end too, 3 follows in one of two cases: the score is 1/2 for
        # it and 1/2 for the 1 after it. After 2 alone one token may be proposed, as likely.
        ((1, 2, 3, 1, 2), 4, [3, 1]),
        ((1, 2, 3, 1, 2), 1, [3]),
        # As many tokens as the text ends with: after one token, one.
        ((9, 2, 3, 4, 8, 2), 4, [3]),
        # The most frequent one, not the last.
        ((2, 3, 5, 2, 3, 6, 2, 4, 7, 2), 4, [3]),
        # Of equally frequent ones, that which got there first.
        ((2, 3, 5, 2, 4, 6, 2), 4, [3]),
        # 4 leads those that occur once when it occurs again, and goes before 3 then.
        ((2, 3, 9, 2, 3, 9, 2, 4, 9, 2, 4, 9, 2), 1, [4]),
        # Nothing that ends the text occurs before.
        ((1, 2, 3), 4, []),
        ((7,), 4, []),
    ],
)
def test_the_likeliest_continuation_of_the_texts_end_is_proposed(text, k, expected):
    assert proposed(tree_of(text), text, k) == expected


def test_fewer_tokens_may_be_other_tokens():
    """After 2 follows 5 in 8 of 11 cases, the end being one, and after `1 2` follow 3 and 4 in 2 of
    3: of one token 5 is the surer, but only one may be proposed after 2 alone, and 3 and 4 have a
    score of 4/3.
    """
    text = (*(0, 2, 5) * 8, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2)
    assert proposed(tree_of(text), text, 1) == [5]
    assert proposed(tree_of(text), text, 2) == [3, 4]


@pytest.mark.parametrize(("others", "expected"), [(8, [3]), (9, [])])
def test_what_follows_less_often_than_the_rule_says_is_not_proposed(others, expected):
    """After 2, which ends the text, 3 follows in 2 cases of 2 + others + 1."""
    rule = SuffixRule(least=2 / 11)
    text = (*(token for n in range(others) for token in (2, 10 + n)), 2, 3, 8, 2, 3, 9, 2)
    assert proposed(tree_of(text, rule=rule), text, 1) == expected


def test_no_text_continues_in_the_next():
    assert proposed(tree_of((1, 2), (3, 4)), (1, 2), 4) == []
    assert proposed(tree_of((1, 2, 3, 4)), (1, 2), 4) == [3]


def test_a_suffix_and_what_follows_it_are_no_longer_than_the_depth():
    text = (*range(8), *range(4))
    assert proposed(tree_of(text), text, 8) == [4, 5, 6, 7]
    assert proposed(tree_of(text, rule=SuffixRule(depth=6)), text, 8) == [4, 5, 6]


def test_the_first_of_two_trees_is_taken_where_both_are_as_sure():
    one, two = tree_of((1, 2, 3)), tree_of((1, 2, 4))
    assert proposals([one, two], [0, 1, 2], [4]) == [(3,)]
    assert proposals([two, one], [0, 1, 2], [4]) == [(4,)]


KS = 1, 2, 8
texts = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=30), min_size=1, max_size=4)
rules = st.builds(
    SuffixRule,
    st.sampled_from([3, 6, 24]),
    st.sampled_from([0.5, 1.0, 2.0]),
    st.sampled_from([0.0, 0.1, 0.3]),
)


@given(texts, rules, st.randoms(use_true_random=False))
def test_a_tree_that_looks_only_where_it_is_asked_proposes_as_if_it_had_counted_everything(
    texts, rule, random
):
    """Also in a tree that grows from another's texts."""
    counted, base = Counted(rule.depth), SuffixTree(rule)
    for text in texts:
        grown = SuffixTree(rule, base)
        place = Place(grown)
        for at, token in enumerate(text, start=1):
            counted.extend([token])
            grown.extend([token])
            place.follow([token])
            if random.random() < 0.5:
                continue  # what was not asked for is looked at later
            for k, found in zip(KS, best_of([place], KS), strict=True):
                expected, _ = counted.best(text[:at], k, rule.factor, rule.least)
                assert list(found) == expected
        base.extend(text)
        base.finish()
        counted.finish()


@given(texts, texts, rules)
def test_two_trees_propose_as_the_library_that_vllm_calls(prompts, responses, rule):
    """Where it is installed: it builds from source only."""
    library = pytest.importorskip("arctic_inference.suffix_decoding")
    cache, base = library.SuffixDecodingCache(rule.depth, 10_000), SuffixTree(rule)
    for name, (prompt, response) in enumerate(zip(prompts, responses, strict=False)):
        cache.start_request(name, prompt)
        trees, text = [tree_of(prompt, rule=rule), SuffixTree(rule, base)], list(prompt)
        places = [Place(tree) for tree in trees]
        for place in places:
            place.follow(prompt)
        for token in response:
            cache.add_active_response(name, [token])
            for tree, place in zip(trees, places, strict=True):
                tree.extend([token])
                place.follow([token])
            text.append(token)
            for k, found in zip(KS, best_of(places, KS), strict=True):
                told = cache.speculate(name, text[-rule.depth :], k, rule.factor, 0.0, rule.least)
                assert list(found) == told.token_ids
        cache.stop_request(name)
        base.extend(response)
        base.finish()
