"""Knows how the runtime is started: one command with a table of subcommands; reads clock and environment for all.

Refuses to know what the subcommands do: each is put together in a module of its own, imported when it is asked for.

Exit codes: 0 done, 1 failed (one line on stderr says why), 2 the command line is wrong.
"""

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import uvloop

from tandem_runtime.domain import policy
from tandem_runtime.domain.adapters import MOST_ADAPTERS
from tandem_runtime.domain.ahead import Overlap
from tandem_runtime.domain.errors import SettingRefused, TandemError
from tandem_runtime.domain.tokens import Drafter
from tandem_runtime.engines.cores import MOST_THREADS, SHORT_WAITING, allowed_cores
from tandem_runtime.engines.options import AS_IS, STEP_DEADLINE_SECONDS, STEP_ROWS, WEIGHTS
from tandem_runtime.settings import Settings, read_settings
from tandem_runtime.wire.transport import FEWER_THREADS
from tandem_runtime.words import (
    LARGEST_MEMORY,
    basis_points,
    named_path,
    pace_table,
    percent,
    port_number,
    positive_number,
)

if TYPE_CHECKING:  # each command imports what it needs when it is asked for
    from tandem_runtime.engines.options import AdapterOptions, Download, EngineOptions
    from tandem_runtime.gateway.admission import Limits
    from tandem_runtime.gateway.server import Listening
    from tandem_runtime.local import Lookup
    from tandem_runtime.serve import PairOptions
    from tandem_runtime.sources import Source

DRAFTERS: Mapping[str, tuple[Drafter, ...]] = {
    "model": (),
    "ngram": (Drafter.NGRAM,),
    "suffix": (Drafter.SUFFIX,),
    "auto": (Drafter.SUFFIX,),
}
"""Which lookups propose, by --drafter; with --draft its model does too."""
MOST_DRAFT_TOKENS, MOST_LOOKUP_TOKENS = 8, 16
"""What is looked up costs nothing to propose."""
NEW_OBJECTS = 100_000
"""So many more than were freed before garbage is looked for, by the usual 700 a tenth of a gateway's time. All streams
wait for a look, and 256 that are under way keep more than half of this. Only requests whose callers leave make garbage,
150 objects each: some 20 MB in all (decision 0026)."""


class SystemClock:
    """The one real `ports.Clock`."""

    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)


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


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    settings = read_settings(os.environ)
    told = {} if "OMP_WAIT_POLICY" in os.environ else SHORT_WAITING  # the others would overrule it
    for name, value in {**told, **FEWER_THREADS}.items():
        os.environ.setdefault(name, value)
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
        print(f"tandem-runtime {command.name}: {' '.join(str(error).splitlines())}", file=sys.stderr)
        return 1


def until_signalled(serve: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run `serve` on a fresh loop, libuv's, which is faster than Python's own; the event given to it is set by SIGTERM
    or SIGINT."""

    async def run() -> None:
        ending = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, ending.set)
        await serve(ending)

    gc.freeze()  # what the libraries hold for good is not looked through again while every stream waits
    gc.set_threshold(NEW_OBJECTS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="tandem-runtime", description="The parts of a speculative pair: gateway, target, draft.")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    for command in COMMANDS:
        subparser = subparsers.add_parser(command.name, help=command.summary, description=command.summary)
        command.add_arguments(subparser)
        subparser.set_defaults(command=command)
    return parser


def _add_target_arguments(parser: argparse.ArgumentParser) -> None:
    _add_role_arguments(parser)
    _add_adapter_arguments(parser)


def _add_adapter_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--adapter",
        dest="adapters",
        action="append",
        default=[],
        type=named_path,
        metavar="NAME=PATH",
        help="a LoRA adapter of the target, as PEFT saves it; may be given again",
    )
    add("--adapters-dir", type=Path, metavar="PATH", help="where the admin side may load further ones from")
    add(
        "--max-adapters",
        type=positive_number,
        default=MOST_ADAPTERS,
        help="adapters held at a time (default %(default)s)",
    )


def _add_role_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", required=True, metavar="PATH", help="a model folder, or scripted:module:function")
    add_serving_arguments(parser, port=8001)
    _add_tls_argument(parser)
    _add_engine_arguments(parser)
    add("--weights", choices=WEIGHTS, default=AS_IS, help="bits to which weights are rounded (default %(default)s)")
    add("--pace", metavar="TABLE", type=pace_table, help="stretch steps to the costs of this table, such as h100-70b")


def _add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--device",
        default="auto",
        help="cpu, cuda or cuda:N (default: cuda where there is one)",
    )
    add("--dtype", choices=("fp32", "bf16"), default="fp32", help="what the engine computes in (default %(default)s)")
    threads = partial(positive_number, most=MOST_THREADS)
    add("--threads", type=threads, help="CPU threads of the engine (default: the cores it may use)")
    add("--max-sessions", type=positive_number, default=64, help="sessions held at a time (default %(default)s)")
    add("--max-length", type=positive_number, help="prompt plus output tokens per session (default: the model's)")
    add(
        "--kv-bytes",
        type=partial(positive_number, most=LARGEST_MEMORY),
        help="memory for keys and values, in serve for both models together (default: as all sessions need at full"
        " length, half of what is free at most)",
    )
    add(
        "--step-rows",
        type=positive_number,
        default=STEP_ROWS,
        help="rows of all sessions together in a step, beside a prompt's chunk (default %(default)s)",
    )
    add(
        "--step-deadline-seconds",
        type=partial(positive_number, least=0),
        default=STEP_DEADLINE_SECONDS,
        help="a step may take so long before /healthz asks for another process; 0: for ever (default %(default)s)",
    )


def add_serving_arguments(parser: argparse.ArgumentParser, *, port: int) -> None:
    """What every role that serves has in common."""
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    add("--port", type=port_number, default=port, help="port to serve on (default %(default)s)")
    add(
        "--admin-port",
        type=port_number,
        default=8002,
        help="/healthz, /readyz, /metrics, /adapters (default %(default)s)",
    )
    add(
        "--grace-seconds",
        type=positive_number,
        default=25,
        help="how long open sessions may go on after SIGTERM (default %(default)s)",
    )


def _add_tls_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--role-tls",
        type=Path,
        metavar="PATH",
        help="folder with tls.crt, tls.key and ca.crt: speak TLS to the other roles, and only to those that show a"
        " certificate of that authority (default: in clear)",
    )


def _engine_options(arguments: argparse.Namespace, *, model: str, weights: str, pace: str | None) -> "EngineOptions":
    from tandem_runtime.engines.options import EngineOptions  # noqa: PLC0415  # only for who serves

    return EngineOptions(
        model=model,
        device=arguments.device,
        dtype=arguments.dtype,
        weights=weights,
        threads=arguments.threads or allowed_cores(),
        max_sessions=arguments.max_sessions,
        max_length=arguments.max_length,
        kv_bytes=arguments.kv_bytes,
        step_rows=arguments.step_rows,
        pace=pace,
    )


def _adapter_options(arguments: argparse.Namespace) -> "AdapterOptions":
    from tandem_runtime.engines.options import AdapterOptions  # noqa: PLC0415  # as its fellow below

    names = [name for name, _ in arguments.adapters]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise SettingRefused(f"--adapter {twice}=... is given twice; a name leads to one folder")
    return AdapterOptions(named=dict(arguments.adapters), folder=arguments.adapters_dir, most=arguments.max_adapters)


def _download(settings: Settings) -> "Download":
    """A target in a cluster is told by the operator what to load, and from which repository."""
    from tandem_runtime.fetch import Hub, fetch_adapter  # noqa: PLC0415  # only for who fetches

    hub = Hub(endpoint=settings.hugging_face_endpoint, token=settings.hugging_face_token)
    return partial(fetch_adapter, hub=hub)


def _run_role(arguments: argparse.Namespace, settings: Settings) -> int:
    from tandem_runtime import role_server as roles  # noqa: PLC0415  # gRPC and numpy, only for who serves

    name = roles.RoleName(arguments.command.name)
    engine = _engine_options(arguments, model=arguments.model, weights=arguments.weights, pace=arguments.pace)
    if name is roles.RoleName.TARGET:
        engine = replace(engine, adapters=replace(_adapter_options(arguments), download=_download(settings)))
    options = roles.ServeOptions(
        host=arguments.host,
        port=arguments.port,
        admin_port=arguments.admin_port,
        grace_seconds=arguments.grace_seconds,
        role_tls=arguments.role_tls,
        step_deadline_seconds=arguments.step_deadline_seconds,
    )
    clock = SystemClock()
    until_signalled(
        lambda ending: roles.serve_role(
            lambda: roles.load_engine(name, engine, clock=clock), options, ending=ending, name=name, clock=clock
        )
    )
    return 0


def _add_gateway_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--deployment", metavar="NAME", help="name of the SpeculativeDeployment")
    add("--namespace", metavar="NS", help="its namespace")
    about = "YAML or JSON that names targets and drafts, in place of a cluster; read anew when it changes"
    add("--peers", type=Path, metavar="PATH", help=about)
    about = (
        "policy.json beside --peers, read anew when it changes (default: all goes to the one pair that the peers are)"
    )
    add("--policy", type=Path, metavar="PATH", help=about)
    _add_tls_argument(parser)
    _add_api_arguments(parser)


def _add_api_arguments(parser: argparse.ArgumentParser) -> None:
    """What both commands that speak OpenAI's API have in common."""
    add_serving_arguments(parser, port=8000)
    add = parser.add_argument
    add("--tokenizer", type=Path, metavar="PATH", help="folder with the target's tokenizer.json")
    add(
        "--auth-file",
        type=Path,
        metavar="PATH",
        help="API keys, one `tenant:key` per line, behind it weight=N, concurrent=N, tokens_per_minute=N where wanted;"
        " read anew when it changes (default: open to all)",
    )
    about = "append what repeats and what was spent on each finished choice, without text (- is standard output)"
    add("--records", type=Path, metavar="PATH", help=about)
    add("--max-requests", type=positive_number, default=256, help="choices in progress (default %(default)s)")


def _run_gateway(arguments: argparse.Namespace, settings: Settings) -> int:
    from tandem_runtime import cluster_gateway  # noqa: PLC0415  # the Kubernetes client, only for who watches

    options = cluster_gateway.GatewayOptions(
        source=_source(arguments, settings),
        tokenizer=arguments.tokenizer,
        auth_file=arguments.auth_file,
        role_tls=arguments.role_tls,
        limits=_limits(arguments),
        listening=_listening(arguments, settings),
    )

    async def serve(ending: asyncio.Event) -> None:
        started = asyncio.get_running_loop().create_future()
        await cluster_gateway.serve_cluster_gateway(options, clock=SystemClock(), ending=ending, started=started)

    until_signalled(serve)
    return 0


def _source(arguments: argparse.Namespace, settings: Settings) -> "Source":
    from tandem_runtime.peers import OnePair  # noqa: PLC0415  # as above
    from tandem_runtime.sources import FromCluster, FromFiles  # noqa: PLC0415  # as above

    told = (arguments.deployment, arguments.namespace)
    if arguments.peers is None:
        if None in told or arguments.policy is not None:
            raise SettingRefused("either --deployment and --namespace are needed, or --peers and, if wanted, --policy")
        return FromCluster(*told, settings.kubeconfig)
    if told != (None, None):
        raise SettingRefused(
            f"--peers {arguments.peers} is for where there is no cluster: leave out --deployment, --namespace"
        )
    name = "" if arguments.tokenizer is None else arguments.tokenizer.resolve().name
    return FromFiles(arguments.peers, arguments.policy, OnePair(name))


def _limits(arguments: argparse.Namespace) -> "Limits":
    from tandem_runtime.gateway.admission import Limits  # noqa: PLC0415  # only for who serves

    return Limits(sessions=arguments.max_requests)


def _listening(arguments: argparse.Namespace, settings: Settings, *, notice_seconds: float = 3.0) -> "Listening":
    from tandem_runtime.gateway.server import Listening  # noqa: PLC0415  # only for who serves

    return Listening(
        host=arguments.host,
        port=arguments.port,
        admin_port=arguments.admin_port,
        notice_seconds=notice_seconds,
        grace_seconds=arguments.grace_seconds,
        records=arguments.records,
        traced=settings.traced,
    )


def _add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--target", "--model", required=True, metavar="PATH", help="a model folder, or scripted:module:function")
    add("--draft", metavar="PATH", help="a model that proposes, given likewise")
    add(
        "--drafter",
        choices=tuple(DRAFTERS),
        help="who proposes: the --draft model; ngram or suffix, which look up what followed in the text so far the last"
        " few tokens, or the longest match, in the tenant's earlier outputs too; auto: suffix, and --draft where it is"
        " given, by turns (default: model with --draft, else nobody)",
    )
    add("--draft-weights", choices=WEIGHTS, help="bits to which weights of --draft are rounded (default as-is)")
    add(
        "--drafter-bytes",
        type=partial(positive_number, most=LARGEST_MEMORY),
        default=64 * 2**20,
        help="memory for the earlier outputs that --drafter suffix and auto look in (default %(default)s)",
    )
    add("--name", help="the model's name in the API (default: the target folder's)")
    _add_api_arguments(parser)
    _add_engine_arguments(parser)
    _add_adapter_arguments(parser)
    add("--pace-target", metavar="TABLE", type=pace_table, help="stretch the target's steps to the costs of a table")
    add("--pace-draft", metavar="TABLE", type=pace_table, help="likewise for the draft")
    add("--mode", choices=("Auto", "Always", "Off"), default="Auto", help="when to speculate (default %(default)s)")
    verifications = tuple(choice.value for choice in policy.VerificationChoice)
    add("--verification", choices=verifications, default="Auto", help="how proposals are judged (default %(default)s)")
    add(
        "--min-draft-tokens",
        type=positive_number,
        default=1,
        help="fewest tokens proposed at once (default %(default)s)",
    )
    add(
        "--max-draft-tokens",
        type=positive_number,
        help=f"most tokens proposed at once (default {MOST_DRAFT_TOKENS}, with a lookup {MOST_LOOKUP_TOKENS})",
    )
    add("--early-stop", action="store_true", help="let a draft end a proposal where its own confidence is low")
    add(
        "--overlap",
        choices=tuple(choice.value for choice in Overlap),
        default=Overlap.OFF.value,
        help="draft ahead while the target verifies; both take from the same cores here, so it is for accelerators of"
        " their own, real or paced (default %(default)s)",
    )
    add("--off-percent", type=percent, default=0, help="time slots with speculation off, to compare (default none)")
    add(
        "--replay-basis-points",
        type=basis_points,
        default=policy.ExactnessPolicy().sample_basis_points,
        help="answers of 10000 that are replayed with speculation off and compared (default %(default)s)",
    )


def _run_serve(arguments: argparse.Namespace, settings: Settings) -> int:
    pair_named = " and ".join(model for model in (arguments.target, arguments.draft) if model is not None)
    print(f"loading {pair_named}", flush=True)  # importing torch alone can take half a minute
    from tandem_runtime import serve as pair  # noqa: PLC0415  # engines and HTTP, only for who serves

    options = _pair_options(arguments, settings)

    async def serve(ending: asyncio.Event) -> None:
        started = asyncio.get_running_loop().create_future()
        started.add_done_callback(lambda done: print(pair.describe_start(options, done.result()), flush=True))
        await pair.serve_pair(options, clock=SystemClock(), ending=ending, started=started)

    until_signalled(serve)
    return 0


def _pair_options(arguments: argparse.Namespace, settings: Settings) -> "PairOptions":
    from tandem_runtime.serve import PairOptions  # noqa: PLC0415  # engines and HTTP, only for who serves

    lookups = _lookups(arguments)
    most = arguments.max_draft_tokens or (MOST_LOOKUP_TOKENS if lookups else MOST_DRAFT_TOKENS)
    if arguments.min_draft_tokens > most:
        raise SettingRefused(f"--min-draft-tokens {arguments.min_draft_tokens} is above --max-draft-tokens {most}")
    if most > policy.LONGEST_PROPOSAL:
        raise SettingRefused(f"--max-draft-tokens {most} is above {policy.LONGEST_PROPOSAL}, the longest proposal")
    target = _engine_options(arguments, model=arguments.target, weights=AS_IS, pace=arguments.pace_target)
    return PairOptions(
        target=replace(target, adapters=_adapter_options(arguments)),
        draft=_draft_options(arguments),
        lookups=lookups,
        tokenizer=arguments.tokenizer,
        name=arguments.name,
        auth_file=arguments.auth_file,
        speculation=policy.SpeculationPolicy(
            mode=policy.SpeculationMode(arguments.mode),
            verification=policy.VerificationChoice(arguments.verification),
            min_draft_tokens=arguments.min_draft_tokens,
            max_draft_tokens=most,
            early_stop=arguments.early_stop,
            overlap=Overlap(arguments.overlap),
        ),
        control=policy.ControlPolicy(off_percent=arguments.off_percent),
        exactness=policy.ExactnessPolicy(arguments.replay_basis_points),
        limits=_limits(arguments),
        listening=_listening(arguments, settings, notice_seconds=0.0),
        step_deadline_seconds=arguments.step_deadline_seconds,
    )


def _lookups(arguments: argparse.Namespace) -> "tuple[Lookup, ...]":
    from tandem_runtime.local import Lookup  # noqa: PLC0415  # engines, only for who serves

    lookups = DRAFTERS[arguments.drafter or "model"]
    if arguments.draft is not None and arguments.drafter in ("ngram", "suffix"):
        raise SettingRefused(
            f"--drafter {arguments.drafter} asks no model, so --draft {arguments.draft} would propose nothing; leave"
            " --draft out, or write --drafter auto, in which suffix and the model propose by turns"
        )
    if arguments.draft is None and arguments.drafter == "model":
        raise SettingRefused("--drafter model: --draft is missing; name the model that proposes")
    return tuple(Lookup(drafter, arguments.drafter_bytes) for drafter in lookups)


def _draft_options(arguments: argparse.Namespace) -> "EngineOptions | None":
    if arguments.draft is None and arguments.draft_weights is not None:
        what = f"--draft {arguments.target} drafts with a copy of the target"
        raise SettingRefused(f"--draft-weights {arguments.draft_weights}: --draft is missing; {what}")
    if arguments.draft is None:
        return None
    weights = arguments.draft_weights or AS_IS
    return _engine_options(arguments, model=arguments.draft, weights=weights, pace=arguments.pace_draft)


def _add_fetch_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--uri", required=True, help="file:///path or hf://organisation/name")
    add("--revision", help="branch, tag or commit of an hf:// repository (default: main)")
    add("--digest", help="refuse the model unless this is its digest, sha256:...")
    add("--tokenizer-only", action="store_true", help="only what a gateway needs; compares no digest")
    add("--into", required=True, metavar="PATH", help="folder for what is downloaded; unused for file:// URIs")


def _run_fetch(arguments: argparse.Namespace, settings: Settings) -> int:
    from tandem_runtime.fetch import Hub, Order, run_fetch  # noqa: PLC0415  # only for who fetches

    order = Order(
        uri=arguments.uri,
        revision=arguments.revision,
        digest=arguments.digest,
        into=Path(arguments.into),
        tokenizer_only=arguments.tokenizer_only,
    )
    hub = Hub(endpoint=settings.hugging_face_endpoint, token=settings.hugging_face_token)
    return run_fetch(order, hub, last_words=settings.termination_message_path)


COMMANDS: Sequence[Command] = (
    Command("target", "Serve a model that judges proposals.", _add_target_arguments, _run_role),
    Command("draft", "Serve a model that makes proposals.", _add_role_arguments, _run_role),
    Command(
        "gateway",
        "Serve OpenAI's API over targets and drafts of a cluster, or of a file.",
        _add_gateway_arguments,
        _run_gateway,
    ),
    Command("serve", "Serve a pair on this machine, without a cluster.", _add_serve_arguments, _run_serve),
    Command("fetch", "Check or download a model folder and tell its digests.", _add_fetch_arguments, _run_fetch),
)


if __name__ == "__main__":
    main()
