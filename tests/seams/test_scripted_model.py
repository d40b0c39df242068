"""The scripted models say what their functions say, and notice stale memory."""

import pytest

from tandem_runtime.domain.blocks import BlockId, Copy
from tandem_runtime.domain.errors import ModelRefused
from tandem_runtime.engines.scripted import (
    ScriptedModel,
    agreeing,
    chain_logits,
    lame_chain_logits,
    load_scripted_model,
)
from tandem_runtime.ports import Row

HERE = "tandem_runtime.engines.scripted"


def preferred(logits: list[float]) -> int:
    return logits.index(max(logits))


# The table of "Greedy ids are the same for every K" (a fault once seen in transformers, issue 30042).
@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ((1,), "5312302432531230"),
        ((1, 2, 3), "2054035015205403"),
        ((2,) * 15, "5403501520540350"),
        ((2,) * 16, "1520540350152054"),
        ((2,) * 17, "0350152054035015"),
    ],
)
def test_the_chain_model_goes_on_as_its_definition_says(prompt: tuple[int, ...], expected: str) -> None:
    ids = prompt
    while len(ids) < len(prompt) + 16:
        ids += (preferred(chain_logits(ids)),)
    assert "".join(map(str, ids[len(prompt) :])) == expected


def test_the_lame_chain_is_wrong_exactly_where_the_length_is_a_multiple_of_three() -> None:
    for length in range(1, 20):
        prefix = (1,) * length
        shift = 1 if length % 3 == 0 else 0
        assert preferred(lame_chain_logits(prefix)) == (preferred(chain_logits(prefix)) + shift) % 7


def test_a_row_answers_from_what_its_blocks_hold() -> None:
    model = ScriptedModel(chain_logits, max_length=32, max_sessions=2)
    one, two, other = (BlockId(block) for block in (2, 0, 1))
    [whole, _] = model.forward([Row((one,), 0, (1, 5, 3), 3), Row((other,), 0, (2,), 0)])
    assert whole.tolist() == [chain_logits((1,)), chain_logits((1, 5)), chain_logits((1, 5, 3))]
    [rolled_back] = model.forward([Row((one, two), 1, (6,) * 20, 1)])
    assert rolled_back.tolist() == [chain_logits((1, *(6,) * 20))]
    model.copy([Copy(two, other)])
    [copied] = model.forward([Row((one, other), 20, (4,), 1)])
    assert copied.tolist() == [chain_logits((1, *(6,) * 19, 4))]
    with pytest.raises(AssertionError, match="hold nothing"):
        model.forward([Row((BlockId(3),), 1, (1,), 1)])


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.7, 1.0])
def test_a_draft_agrees_on_the_share_of_prefixes_that_it_was_given(acceptance: float) -> None:
    draft = agreeing(chain_logits, acceptance=acceptance)
    prefixes = [(i % 7, i // 7 % 7, i // 49 % 7, i // 343) for i in range(2000)]
    same = sum(preferred(list(draft(prefix))) == preferred(chain_logits(prefix)) for prefix in prefixes)
    assert same / len(prefixes) == pytest.approx(acceptance, abs=0.04)


def test_a_model_is_named_by_module_and_function() -> None:
    model = load_scripted_model(f"scripted:{HERE}:chain_logits")
    assert (model.vocab_size, model.determinism) == (7, "Bitwise")


@pytest.mark.parametrize(
    "name",
    [
        "scripted:no.such.module:f",
        f"scripted:{HERE}:no_such_function",
        "scripted:",
        "scripted:..:f",
        "scripted:os:sep",
        f"scripted:{HERE}:chain_logits,acceptance=2",
        f"scripted:{HERE}:chain_logits,acceptance=much",
        f"scripted:{HERE}:chain_logits,speed=2",
    ],
)
def test_a_name_that_means_no_model_is_refused_with_the_name(name: str) -> None:
    with pytest.raises(ModelRefused, match="scripted:"):
        load_scripted_model(name)
