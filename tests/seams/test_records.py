"""What is kept of finished choices repeats them, tells what they cost, and holds nothing of what was asked or said."""

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from tests.seams.gateway_peers import LETTERS, Running, always, running_gateway

from tandem_runtime.domain.errors import SettingRefused
from tandem_runtime.domain.policy import LONGEST_PROPOSAL
from tandem_runtime.domain.tokens import TokenId
from tandem_runtime.gateway.choices import BANDS, in_bands
from tandem_runtime.gateway.record_file import STANDARD_OUTPUT, RecordFile, opened

ENGINES = {"target": "sha256:target", "tokenizer": "sha256:table", "draft": "sha256:draft", "adapter": None}


def warm(prefix: tuple[TokenId, ...]) -> list[float]:
    """Everything may be said, by what was said last."""
    return [float((token * 3 + prefix[-1] * 5) % 4) for token in range(len(LETTERS))]


def cooler(prefix: tuple[TokenId, ...]) -> list[float]:
    """Guesses that often stand and often do not."""
    return [logit + (token == 2) for token, logit in enumerate(warm(prefix))]


async def kept(running: Running, path: Path, **asked: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The reply, and the records that it left."""
    path.unlink(missing_ok=True)
    with opened(path) as running.gateway.records:
        reply = await running.plain(**asked)
    return reply, [json.loads(line) for line in path.read_text().splitlines()]


def asked_again(record: dict[str, Any]) -> dict[str, Any]:
    """A request made of a record alone; its prompt is missing."""
    sampling, bounds = record["sampling"], max(record["kByRound"])
    return {
        "seed": record["seed"],
        "max_tokens": record["completionTokens"],
        "temperature": sampling["temperature"],
        "top_k": sampling["topK"],
        "top_p": sampling["topP"],
        "min_p": sampling["minP"],
        "repetition_penalty": sampling["repetitionPenalty"],
        "frequency_penalty": sampling["frequencyPenalty"],
        "presence_penalty": sampling["presencePenalty"],
        "min_tokens": sampling["minTokens"],
        "n": record["choice"] + 1,
        "speculation": {
            "verification": record["verification"],
            "minDraftTokens": bounds,
            "maxDraftTokens": bounds,
        },
    }


@pytest.mark.parametrize("verification", ["Coupled", "Block", "Rejection"])
async def test_a_record_and_its_prompt_repeat_the_ids(verification: str, tmp_path: Path) -> None:
    """Of a request without a seed, which drew one."""
    async with running_gateway(warm, cooler, speculation=always(3)) as running:
        asked = {"max_tokens": 60, "top_p": 0.9, "n": 2, "speculation": {"verification": verification}}
        reply, records = await kept(running, tmp_path / "records", prompt=[1, 2], **asked)
        first, second = sorted(records, key=lambda record: record["choice"])
        again, [*_, repeated] = await kept(running, tmp_path / "records", prompt=[1, 2], **asked_again(second))
    assert again["choices"][1]["text"] == reply["choices"][1]["text"] != reply["choices"][0]["text"]
    assert first["kByRound"] != second["kByRound"] or first["rejections"] != second["rejections"]
    assert {name: repeated[name] for name in ("parameters", "kByRound", "rejections", "digests")} == {
        name: second[name] for name in ("parameters", "kByRound", "rejections", "digests")
    }


async def test_a_record_adds_up_to_what_the_reply_says(tmp_path: Path) -> None:
    async with running_gateway(warm, cooler, speculation=always(3)) as running:
        asked = {"prompt": "ab", "max_tokens": 50, "seed": 7, "speculation": {"details": True}}
        reply, (record,) = await kept(running, tmp_path / "records", **asked)
        (pod,) = [replica.uid for replica in running.gateway.fleet.targets]
    told = reply["speculation"]
    assert {name: record[name] for name in ("seed", "revision", "verification", "rounds", "proposed", "accepted")} == {
        name: told[name] for name in ("seed", "revision", "verification", "rounds", "proposed", "accepted")
    }
    assert sum(record["rejections"].values()) == told["rejections"] > 0
    assert (sum(record["kByRound"]), len(record["kByRound"])) == (told["proposed"], told["rounds"])
    assert told["details"] == {"noise": 1, "digests": ENGINES, "kByRound": [record["kByRound"]]}
    assert record["request"] == reply["id"]
    assert record["digests"] == ENGINES
    assert (record["promptTokens"], record["completionTokens"], record["finish"]) == (2, 50, "length")
    assert 0 < record["firstTokenSeconds"] < record["seconds"] < 30
    assert record["pod"] == pod


async def test_details_are_told_on_demand_alone_and_steer_nothing() -> None:
    async with running_gateway(warm, warm, speculation=always(3)) as running:
        events = [
            event
            async for event in running.stream(prompt="a", max_tokens=9, n=2, seed=1, speculation={"details": True})
        ]
        plain = await running.plain(prompt="a", max_tokens=9, seed=1)
        assert running.stratum()["rounds"] > plain["speculation"]["rounds"]  # both count for the deployment
    assert "details" not in plain["speculation"]
    (told,) = [event["speculation"]["details"] for event in events if "speculation" in event]
    assert [sum(each) > 0 for each in told["kByRound"]] == [True, True]


async def test_no_text_and_no_id_of_a_prompt_or_an_output_is_in_a_record(tmp_path: Path) -> None:
    """Two requests that differ in nothing but that leave records that differ in nothing but name, seed and times."""
    marks = [b"<MARK%d>" % number for number in range(7)]

    def following(prefix: tuple[TokenId, ...]) -> list[float]:
        return [float(token == (prefix[-1] + 1) % 7) for token in range(7)]

    async with running_gateway(following, following, speculation=always(4), table=marks) as running:
        records = []
        for prompt in ([0, 1], [3, 5]):
            asked = {"prompt": prompt, "max_tokens": 20, "temperature": 0, "stop": ["SECRET STOP"], "user": "SOMEBODY"}
            reply, (record,) = await kept(running, tmp_path / "records", **asked)
            written = (tmp_path / "records").read_text()
            assert "MARK" in reply["choices"][0]["text"]
            assert not any(word in written for word in ("MARK", "SECRET", "SOMEBODY"))
            records.append(record)
    varying = {name for name in records[0] if records[0][name] != records[1][name]}
    assert varying <= {"request", "seed", "began", "firstTokenSeconds", "seconds"}


async def test_a_choice_that_did_not_end_leaves_no_record_and_its_fellows_do(tmp_path: Path) -> None:
    async with running_gateway(warm, warm, speculation=always(3), max_length=4096, draft_length=4096) as running:
        with opened(tmp_path / "records") as running.gateway.records:
            body = {"model": "chat", "prompt": "a", "max_tokens": 4000, "stream": True}
            async with running.http.stream("POST", "/v1/completions", json=body) as streamed:
                await anext(streamed.aiter_lines())
            async with asyncio.timeout(30):
                while not running.is_empty:
                    await asyncio.sleep(0.01)
            await running.plain(prompt="a", max_tokens=3)
    (record,) = map(json.loads, (tmp_path / "records").read_text().splitlines())
    assert record["completionTokens"] == 3


async def test_records_that_cannot_be_written_are_told_once_and_answers_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    async with running_gateway(warm) as running:
        running.gateway.records = RecordFile(full)
        with caplog.at_level(logging.ERROR):
            for _ in range(3):
                await running.plain(prompt="a", max_tokens=3)
    os.close(full)
    (told,) = [message for message in caplog.messages if "records" in message]
    assert "No space left on device" in told


def test_a_line_that_was_written_in_part_spoils_no_other() -> None:
    """As where a disk is full for a while; here a pipe is."""
    end, begin = os.pipe()
    os.set_blocking(begin, False)
    records = RecordFile(begin)
    for line in ("x" * 200_000, "y" * 200_000):
        records.add({"request": line})  # type: ignore[typeddict-item]  # a line is a line
    first = os.read(end, 200_000)
    records.add({"request": "whole"})  # type: ignore[typeddict-item]
    os.close(begin)
    with os.fdopen(end, "rb") as rest:
        assert (first + rest.read()).splitlines()[-1] == b'{"request":"whole"}'


def test_a_place_where_nothing_can_be_written_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(SettingRefused, match=r"--records .*/absent/records: No such file or directory; name a file"):
        opened(tmp_path / "absent" / "records").__enter__()


def test_a_dash_is_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    with opened(STANDARD_OUTPUT) as records:
        records.add({"version": 1})  # type: ignore[typeddict-item]  # a line is a line
    assert capfd.readouterr().out == '{"version":1}\n'


def test_rejections_fall_into_bands_that_leave_no_position_out() -> None:
    counts = in_bands(range(64))
    assert counts == {"1": 1, "2": 1, "3-4": 2, "5-8": 4, "9-16": 8, "17-64": 48}
    assert sum(in_bands([0, 0, 2, 3, 63]).values()) == 5
    assert BANDS[-1] == LONGEST_PROPOSAL
