"""The demo's clients against a gateway in this process."""

import asyncio

from examples.demo.traffic import Load, Traffic
from tests.seams.gateway_peers import running_gateway, until

from tandem_runtime.engines.scripted import chain_logits

NOBODY = "http://127.0.0.1:1"


async def test_clients_go_on_after_a_failure_and_say_what_their_last_request_failed_with() -> None:
    async with running_gateway(chain_logits) as running:
        traffic = Traffic(Load(url=NOBODY, model="chat", prompts=["a", "b"], streams=2))
        traffic.start()
        try:
            await until(lambda: traffic.trouble.startswith("ConnectError"))
            traffic.switch(Load(url=running.url, model="chat", prompts=["a", "b"], streams=2))
            await until(lambda: traffic.trouble == "")
            traffic.switch(Load(url=running.url, model="another", prompts=["a", "b"], streams=2))
            await until(lambda: "404" in traffic.trouble)
        finally:
            await asyncio.to_thread(traffic.stop)
