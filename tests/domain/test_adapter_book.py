"""Names, contents and sessions of adapters: what may be asked for, what stays, and what is freed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_runtime.domain.adapters import AdapterBook, AdapterDigest, AdapterFacts, refuse_bad_name
from tandem_runtime.domain.errors import BadRequest, NotLoaded, Overloaded

A, B, C = (AdapterDigest(f"sha256:{letter}") for letter in "abc")


def facts(name: str, digest: AdapterDigest) -> AdapterFacts:
    return AdapterFacts(name, digest, rank=4, bytes=100)


def book(*named: tuple[str, AdapterDigest], most: int = 2) -> AdapterBook:
    made = AdapterBook(most=most)
    for name, digest in named:
        made.add(facts(name, digest))
    return made


def test_a_name_and_a_digest_lead_to_the_content() -> None:
    known = book(("one", A), ("two", B))
    assert [known.find(asked) for asked in ("one", A, "two", B)] == [A, A, B, B]
    assert known.loaded == (facts("one", A), facts("two", B))


def test_what_is_not_there_is_refused_naming_what_is() -> None:
    with pytest.raises(NotLoaded, match="adapter 'three' is not loaded; loaded are one, two"):
        book(("two", B), ("one", A)).find("three")
    with pytest.raises(NotLoaded, match="adapter 'one' is not loaded; none is loaded"):
        book().remove("one")


def test_one_content_under_two_names_stays_until_both_are_gone() -> None:
    known = book(("one", A), ("also", A), most=1)
    known.remove("one")
    assert known.take_over(()) == set()
    known.remove("also")
    assert known.take_over(()) == {A}


def test_a_leaving_adapter_stays_for_its_sessions_and_takes_no_new_ones() -> None:
    known = book(("one", A))
    known.remove("one")
    assert known.take_over({A, None}) == set()
    for asked in ("one", A):
        with pytest.raises(NotLoaded):
            known.find(asked)
    assert known.take_over({None}) == {A}


def test_a_name_given_to_another_content_leaves_the_first_to_its_sessions() -> None:
    known = book(("one", A))
    known.add(facts("one", B))
    assert known.find("one") == B
    assert known.take_over({A}) == set()
    assert known.take_over({B}) == {A}


def test_what_is_leaving_counts_towards_the_bound() -> None:
    known = book(("one", A), ("two", B))
    known.add(facts("also", A))
    with pytest.raises(Overloaded, match="2 adapters are held, which is all that --max-adapters allows"):
        known.add(facts("three", C))
    known.remove("two")
    with pytest.raises(Overloaded):
        known.add(facts("three", C))
    known.take_over(())
    known.add(facts("three", C))
    assert [each.name for each in known.loaded] == ["also", "one", "three"]


@pytest.mark.parametrize("name", ["", ".hidden", "a:b", "a/b", "a b", "ä", "-a", "a" * 64, "a\n"])
def test_a_name_that_would_not_stand_behind_a_models_is_refused(name: str) -> None:
    with pytest.raises(BadRequest, match="give 1 to 63 letters"):
        refuse_bad_name(name)


def test_ordinary_names_are_taken() -> None:
    for name in ("legal", "v1.2_final-3", "A", "9" * 63):
        refuse_bad_name(name)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from("xyz"), st.sampled_from([A, B, C])),
        st.tuples(st.just("remove"), st.sampled_from("xyz"), st.none()),
        st.tuples(st.just("open"), st.sampled_from("xyz"), st.none()),
        st.tuples(st.just("close"), st.none(), st.none()),
    ),
    max_size=30,
)


@given(steps, st.integers(1, 3))
def test_nothing_is_freed_that_is_named_or_held_and_all_else_is(
    moves: list[tuple[str, str, AdapterDigest]], most: int
) -> None:
    known, named = AdapterBook(most=most), dict[str, AdapterDigest]()
    held, sessions = set[AdapterDigest](), list[AdapterDigest]()
    for move, name, digest in moves:
        try:
            match move:
                case "add":
                    known.add(facts(name, digest))
                    named[name] = digest
                    held.add(digest)
                case "remove":
                    known.remove(name)
                    del named[name]
                case "open":
                    sessions.append(known.find(name))
                    assert sessions[-1] == named[name]
                case _:
                    del sessions[:1]
        except (NotLoaded, Overloaded):
            assert name not in named or move == "add"
        over = known.take_over(sessions)
        assert held - over == set(named.values()) | set(sessions)
        held -= over
        assert len(held) <= most
