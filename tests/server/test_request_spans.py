"""Spans of requests, as a collector gets them: read with OpenTelemetry's own messages."""

import gzip
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from mlxr.compiler.errors import RequestError
from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.request_spans import RequestSpans
from mlxr.server.settings import ServerSettings
from mlxr_tests.running_server import running_server, tiny_source

SECRET = "the fox is blue"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@contextmanager
def collector(bodies: list[bytes]) -> Iterator[str]:
    """Keeps what is sent to it."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            bodies.append(gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces"
        server.shutdown()


def test_a_collector_gets_a_span_of_each_request() -> None:
    reason = 'it is not installed: pip install -e ".[otel]"'
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason=reason)
    messages = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason=reason)
    bodies: list[bytes] = []
    with collector(bodies) as url:
        settings = ServerSettings(traces_endpoint=url, log_text=True)
        with running_server(lambda: ModelPool([tiny_source()]), settings) as server:
            body = {"model": "tiny", "prompt": SECRET, "max_tokens": 4, "ignore_eos": True}
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            usage = server.http.post("/v1/completions", json=body, headers=headers).json()["usage"]
            server.http.post("/v1/completions", json=body | {SECRET: 1}, headers={"traceparent": "nonsense"})
    assert SECRET.encode() not in b"".join(bodies)
    told = [
        message for each in bodies for message in messages.ExportTraceServiceRequest.FromString(each).resource_spans
    ]
    assert {attribute.value.string_value for attribute in told[0].resource.attributes} >= {"mlxr"}
    answered, refused = [span for message in told for scope in message.scope_spans for span in scope.spans]
    assert answered.name == refused.name == "POST /v1/completions", "and none of /health"
    assert (answered.trace_id.hex(), answered.parent_span_id.hex()) == (TRACE, PARENT)
    assert refused.trace_id.hex() != TRACE and not refused.parent_span_id
    values = {each.key: each.value for each in answered.attributes}
    assert values["http.response.status_code"].int_value == 200
    assert values["gen_ai.request.model"].string_value == "tiny"
    assert values["gen_ai.usage.input_tokens"].int_value == usage["prompt_tokens"]
    assert values["gen_ai.usage.output_tokens"].int_value == 4
    seconds = (answered.end_time_unix_nano - answered.start_time_unix_nano) / 1e9
    assert 0 < values["gen_ai.latency.time_to_first_token"].double_value < seconds
    assert {each.value.string_value for each in refused.attributes if each.key == "error.type"} == {"unknown_field"}


def test_spans_need_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(RequestError, match=r"opentelemetry.* is not installed, .* pip install 'mlxr\[otel\]'"):
        RequestSpans("http://127.0.0.1:9/v1/traces")
