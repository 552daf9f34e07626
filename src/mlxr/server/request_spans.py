"""OpenTelemetry: a span for each HTTP request, sent to a collector by OpenTelemetry's own packages (extra `otel`).

A span continues the trace that the client names (`traceparent`), and tells what the request's line in the log tells,
without texts of users. Attributes have OpenTelemetry's names, and vLLM's where it has none.
"""

import importlib
import os
import time
from collections.abc import Sequence
from typing import Any

from mlxr.compiler.errors import RequestError
from mlxr.compiler.version import VERSION
from mlxr.server.request_record import RequestRecord

_PARENT = (b"traceparent", b"tracestate")


class RequestSpans:
    """Sends spans from a thread of its own; if the collector does not take them, they are lost, and the log says so."""

    def __init__(self, endpoint: str) -> None:
        """Connects to nothing yet.

        Args:
            endpoint: the collector's URL for traces, such as http://127.0.0.1:4318/v1/traces (OTLP over HTTP). The
                OTEL_ variables say the rest: headers, certificates, sampling, the name of the service.

        Raises:
            RequestError: the packages are not installed.
        """
        try:
            # By name: the packages are optional, and their annotations would be missing where they are not.
            self._api: Any = importlib.import_module("opentelemetry.trace")
            propagation: Any = importlib.import_module("opentelemetry.trace.propagation.tracecontext")
            resources: Any = importlib.import_module("opentelemetry.sdk.resources")
            sdk: Any = importlib.import_module("opentelemetry.sdk.trace")
            export: Any = importlib.import_module("opentelemetry.sdk.trace.export")
            otlp: Any = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        except ImportError as error:
            raise RequestError(
                f"{error.name} is not installed, which --otlp-traces-endpoint needs: pip install 'mlxr[otel]'"
            ) from error
        service = {"service.name": os.environ.get("OTEL_SERVICE_NAME", "mlxr"), "service.version": VERSION}
        self._provider = sdk.TracerProvider(resource=resources.Resource.create(service), shutdown_on_exit=False)
        self._provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter(endpoint=endpoint)))
        self._tracer = self._provider.get_tracer("mlxr.server", VERSION)
        self._parents = propagation.TraceContextTextMapPropagator()

    def add(self, record: RequestRecord, route: str, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Adds the span of a request that has ended.

        Args:
            record: what is known of it.
            route: the pattern that its path matches.
            headers: of the request.
        """
        end = time.time_ns()
        begin = end - int((time.perf_counter() - record.begin) * 1e9)
        parent = {name.decode(): value.decode("latin-1") for name, value in headers if name in _PARENT}
        span = self._tracer.start_span(
            f"{record.method} {route}",
            context=self._parents.extract(parent),
            kind=self._api.SpanKind.SERVER,
            start_time=begin,
            attributes=_attributes(record, route),
        )
        if record.status >= 500:
            span.set_status(self._api.StatusCode.ERROR)
        span.end(end)

    def close(self) -> None:
        """Sends what is left; waits for a collector that does not answer, but not for long."""
        self._provider.shutdown()


def _attributes(record: RequestRecord, route: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "http.request.method": record.method,
        "http.route": route,
        "http.response.status_code": record.status,
        "gen_ai.request.id": record.request_id,
    }
    if record.error:
        attributes["error.type"] = record.error
    if record.model:
        attributes |= {
            "gen_ai.request.model": record.model,
            "gen_ai.usage.input_tokens": record.prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
            "gen_ai.usage.output_tokens": record.completion_tokens,
            "gen_ai.response.finish_reasons": record.finish_reasons,
        }
        if record.first_token is not None:
            attributes["gen_ai.latency.time_to_first_token"] = record.first_token
    return attributes
