"""Knows how the runtime is started: one command with a table of subcommands; reads clock and environment for all.

Refuses to know what the subcommands do: each is put together in a module of its own, imported when it is asked for.

Exit codes: 0 done, 1 failed (one line on stderr says why), 2 the command line is wrong.
"""

import argparse
import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tandem_runtime.domain.errors import TandemError
from tandem_runtime.settings import Settings, read_settings


class SystemClock:
    """The one real `ports.Clock`."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


@dataclass(frozen=True, slots=True)
class Command:
    """`run` gives the exit code; what it raises of our error tree, and OSError, becomes one line and exit 1."""

    name: str
    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Settings], int]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line instead of the whole usage."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def port_number(text: str) -> int:
    """0 lets the system choose."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; give a number from 0 to 65535")
    return int(text)


def positive_number(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    settings = read_settings(os.environ)
    parsed = _parser().parse_args(arguments)
    command: Command = parsed.command
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s level=%(levelname)s logger=%(name)s %(message)s",
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        return command.run(parsed, settings)
    except (TandemError, OSError) as error:
        print(f"tandem-runtime {command.name}: {error}", file=sys.stderr)
        return 1


def until_signalled(serve: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run `serve` on a fresh loop; the event given to it is set by SIGTERM or SIGINT."""

    async def run() -> None:
        ending = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, ending.set)
        await serve(ending)

    asyncio.run(run())


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="tandem-runtime", description="The parts of a speculative pair: gateway, target, draft.")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    for command in COMMANDS:
        subparser = subparsers.add_parser(command.name, help=command.summary, description=command.summary)
        command.add_arguments(subparser)
        subparser.set_defaults(command=command)
    return parser


def _add_role_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", required=True, metavar="PATH", help="a model folder, or scripted:module:function")
    add_serving_arguments(parser, port=8001)
    add("--dtype", choices=("fp32", "bf16"), default="fp32", help="what the engine computes in (default %(default)s)")
    add("--threads", type=positive_number, default=1, help="CPU threads of the engine (default %(default)s)")
    add("--max-sessions", type=positive_number, default=64, help="sessions held at a time (default %(default)s)")
    add("--max-length", type=positive_number, help="prompt plus output tokens per session (default: the model's)")
    add("--pace", metavar="TABLE", type=_pace_table, help="stretch steps to the costs of this table, such as h100-70b")


def add_serving_arguments(parser: argparse.ArgumentParser, *, port: int) -> None:
    """What every role that serves has in common."""
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    add("--port", type=port_number, default=port, help="port to serve on (default %(default)s)")
    add("--admin-port", type=port_number, default=8002, help="/healthz, /readyz, /metrics (default %(default)s)")
    add(
        "--grace-seconds",
        type=positive_number,
        default=25,
        help="how long open sessions may go on after SIGTERM (default %(default)s)",
    )


def _pace_table(text: str) -> str:
    from tandem_runtime.engines.pace import TABLES  # noqa: PLC0415  # numpy, only for who paces

    if text not in TABLES:
        raise argparse.ArgumentTypeError(f"there is no table {text!r}; the tables are {', '.join(sorted(TABLES))}")
    return text


def _run_role(arguments: argparse.Namespace, _settings: Settings) -> int:
    from tandem_runtime import role_server as roles  # noqa: PLC0415  # gRPC and numpy, only for who serves

    name = roles.RoleName(arguments.command.name)
    engine = roles.EngineOptions(
        model=arguments.model,
        dtype=arguments.dtype,
        threads=arguments.threads,
        max_sessions=arguments.max_sessions,
        max_length=arguments.max_length,
        pace=arguments.pace,
    )
    options = roles.ServeOptions(
        host=arguments.host,
        port=arguments.port,
        admin_port=arguments.admin_port,
        grace_seconds=arguments.grace_seconds,
    )
    clock = SystemClock()
    until_signalled(
        lambda ending: roles.serve_role(
            lambda: roles.load_engine(name, engine, clock=clock), options, ending=ending, name=name
        )
    )
    return 0


def _add_fetch_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--uri", required=True, help="file:///path or hf://organisation/name")
    add("--revision", help="branch, tag or commit of an hf:// repository (default: main)")
    add("--digest", help="refuse the model unless this is its digest, sha256:...")
    add("--into", required=True, metavar="PATH", help="folder for what is downloaded; unused for file:// URIs")


def _run_fetch(arguments: argparse.Namespace, settings: Settings) -> int:
    from tandem_runtime.fetch import Hub, Order, run_fetch  # noqa: PLC0415  # only for who fetches

    order = Order(uri=arguments.uri, revision=arguments.revision, digest=arguments.digest, into=Path(arguments.into))
    hub = Hub(endpoint=settings.hugging_face_endpoint, token=settings.hugging_face_token)
    return run_fetch(order, hub, last_words=settings.termination_message_path)


COMMANDS: Sequence[Command] = (
    Command("target", "Serve a model that judges proposals.", _add_role_arguments, _run_role),
    Command("draft", "Serve a model that makes proposals.", _add_role_arguments, _run_role),
    Command("fetch", "Check or download a model folder and tell its digests.", _add_fetch_arguments, _run_fetch),
)


if __name__ == "__main__":
    main()
