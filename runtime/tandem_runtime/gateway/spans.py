"""Knows how a request reads as spans of OpenTelemetry: one of the whole, and one of each stage it went through.

Refuses to know what was asked and said: a span holds names, numbers and reasons, never a text, a token's id or a
tenant's name.

    answer         from the request to its end; a child of the caller's span where the request has a `traceparent`
      wait         for room here and on a target
      prefill      until the first token
      decode       until the end, with the seconds that its rounds spent on each stage, summed over choices

A round has no span of its own: there are dozens in a second, and their sums say where the time went. Spans are sent in
batches by a thread, from a queue that is bounded: where nobody takes them they are dropped, and no answer waits. Who
collects them, how many of them and under which service name is told by OpenTelemetry's own variables, `OTEL_*`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tandem_runtime.gateway.tracing import Told
from tandem_runtime.telemetry import RoundSums

SERVICE = "tandem-gateway"
SEND_SECONDS = 3
"""For one batch; a stop waits no longer for the last one."""
NANOSECONDS = 1_000_000_000

Attributes = Mapping[str, str | int | float]


class Spans:
    """Sends what it is told."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer: Tracer = provider.get_tracer("tandem", version("tandem"))
        self._propagator = TraceContextTextMapPropagator()

    def tell(self, told: Told) -> None:
        spoke = [choice.spoke_at for choice in told.progress.choices if choice.spoke_at is not None]
        first = min(spoke, default=None)
        span = self._tracer.start_span(
            "answer",
            context=self._propagator.extract(told.caller, Context()),
            kind=SpanKind.SERVER,
            start_time=_moment(told, told.progress.came.monotonic),
            attributes=_of_answer(told),
        )
        if told.failure is not None:
            span.set_status(Status(StatusCode.ERROR, told.failure))
        within = set_span_in_context(span)
        self._stage(within, "wait", told, told.progress.came.monotonic, told.progress.seated_at)
        self._stage(within, "prefill", told, told.progress.seated_at, first)
        self._stage(within, "decode", told, first, told.ended_at, _of_decode(told.sums))
        span.end(_moment(told, told.ended_at))

    def _stage(
        self,
        within: Context,
        name: str,
        told: Told,
        began: float | None,
        ended: float | None,
        of: Attributes | None = None,
    ) -> None:
        """One that did not begin has no span; one that did not end, ended with the request."""
        if began is not None:
            span = self._tracer.start_span(name, within, attributes=of, start_time=_moment(told, began))
            span.end(_moment(told, told.ended_at if ended is None else ended))


@contextmanager
def tracing(exporter: SpanExporter | None = None) -> Iterator[Spans]:
    """While the block lasts, spans go where `OTEL_EXPORTER_OTLP_ENDPOINT` says, or to `exporter`; what is left at its
    end is sent then, if it can be within seconds."""
    named = Resource({"service.name": SERVICE, "service.version": version("tandem")})
    provider = TracerProvider(resource=named.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter(timeout=SEND_SECONDS)))
    try:
        yield Spans(provider)
    finally:
        provider.shutdown()


def _moment(told: Told, monotonic: float) -> int:
    return int((told.progress.came.wall + monotonic - told.progress.came.monotonic) * NANOSECONDS)


def _of_answer(told: Told) -> Attributes:
    ended = [choice.finish for choice in told.progress.choices if choice.finish is not None]
    return {
        "tandem.request": told.request,
        "tandem.revision": told.revision,
        "tandem.choices": len(told.progress.choices),
        "tandem.finish": ",".join(sorted({finish.reason.value for finish in ended})),
        "gen_ai.usage.input_tokens": sum(finish.counts.prompt_tokens for finish in ended),
        "gen_ai.usage.output_tokens": sum(finish.counts.completion_tokens for finish in ended),
    }


def _of_decode(sums: RoundSums) -> Attributes:
    rounds = sum(sums.by_proposed.values())
    proposed = sum(size * count for size, count in sums.by_proposed.items())
    seconds = {f"tandem.seconds.{stage}": spent for stage, spent in sums.stages()}
    return {"tandem.rounds": rounds, "tandem.proposed": proposed, "tandem.accepted": sums.accepted(), **seconds}
