"""/metrics, against what the test itself asked for."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mlxr.compiler.spec.change import NO_CHANGES
from mlxr.runtime.cache.tiers.tier_sizes import TierSizes
from mlxr.server.metrics import server_metrics
from mlxr.server.metrics.histogram import Histogram
from mlxr.server.pool.loaded_model import LoadedModel, Progress
from mlxr.server.pool.model_pool import ModelPool
from mlxr_tests.running_server import RunningServer, running_server, tiny_source

PROMPT = "Once upon a time there was a fox who lived in a forest and a hill"
CHAT = [{"role": "user", "content": PROMPT}]


class Gated:
    """A source that loads when it may."""

    def __init__(self) -> None:
        self._source = tiny_source("gated", tiers=TierSizes(1 << 20), changes=NO_CHANGES)
        self.name, self.meter = self._source.name, self._source.meter
        self.planned_memory, self.facts = self._source.planned_memory, self._source.facts
        self.planned_context = self._source.planned_context
        self.gate = threading.Event()

    def load(self, progress: Progress, most_bytes: int | None = None) -> LoadedModel:
        assert self.gate.wait(30)
        return self._source.load(progress, most_bytes)


gated = Gated()


@pytest.fixture(scope="module")
def own() -> Iterator[RunningServer]:
    """A server that nobody else asks."""
    with running_server(lambda: ModelPool([tiny_source(), gated])) as running:
        yield running


class Scrape:
    """What /metrics tells: each sample by its name and labels."""

    def __init__(self, text: str) -> None:
        self.samples = {
            (sample.name, frozenset((sample.labels | {"engine": "0"}).items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def of(self, name: str, model_name: str = "tiny", **labels: str) -> float:
        return self.samples[name, frozenset({"engine": "0", "model_name": model_name, **labels}.items())]

    def requests(self, method: str, path: str, status: int) -> float:
        labels = {"engine": "0", "method": method, "path": path, "status": str(status)}
        return self.samples["mlxr:http_requests_total", frozenset(labels.items())]

    def labels(self, name: str) -> list[dict[str, str]]:
        return [dict(labels) for key, labels in self.samples if key == name]


def scrape(server: RunningServer) -> Scrape:
    answer = server.http.get("/metrics")
    assert answer.status_code == 200
    return Scrape(answer.text)


def ask(server: RunningServer, **body: Any) -> Any:
    answer = server.http.post("/v1/completions", json={"model": "tiny", "temperature": 0, "prompt": PROMPT} | body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_numbers_are_those_of_the_requests(own: RunningServer) -> None:
    before = scrape(own)
    assert before.of("vllm:num_requests_running") == before.of("mlxr:model_loaded") == 0
    usages = [ask(own, max_tokens=8)["usage"], ask(own, max_tokens=5, n=2)["usage"]]
    cached = usages[1]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 0
    endless = {"model": "tiny", "prompt": PROMPT, "max_tokens": 400, "ignore_eos": True, "stream": True}
    with own.http.stream("POST", "/v1/completions", json=endless) as stream:
        next(stream.iter_bytes())  # and leaves
    assert own.http.post("/v1/completions", json={"model": "tiny", "prompt": PROMPT, "nonsense": 1}).status_code == 400
    assert own.http.get("/nowhere/at/all").status_code == 404
    while scrape(own).of("mlxr:model_requests"):
        pass
    told = scrape(own)
    prompt = usages[0]["prompt_tokens"]
    assert told.of("vllm:prompt_tokens_total") == told.of("vllm:prefix_cache_queries_total") == 4 * prompt
    assert told.of("vllm:prefix_cache_hits_total") >= cached
    reasons = ("stop", "length", "abort", "error")
    finished = [told.of("vllm:request_success_total", finished_reason=reason) for reason in reasons]
    assert finished == [0, 3, 1, 0]
    tokens = told.of("vllm:generation_tokens_total")
    assert tokens >= 8 + 2 * 5 + 1
    assert told.of("vllm:time_to_first_token_seconds_count") == 4
    assert told.of("vllm:e2e_request_latency_seconds_count") == 3
    following = told.of("vllm:inter_token_latency_seconds_count")
    assert 7 + 2 * 4 <= following <= tokens - 4
    assert told.of("vllm:inter_token_latency_seconds_bucket", le="+Inf") == following
    assert told.of("vllm:inter_token_latency_seconds_sum") > 0
    assert told.of("vllm:num_requests_running") == told.of("vllm:num_requests_waiting") == 0
    assert told.of("vllm:kv_cache_usage_perc") == told.of("vllm:num_preemptions_total") == 0
    assert told.requests("POST", "/v1/completions", 200) == 3
    assert told.requests("POST", "/v1/completions", 400) == told.requests("GET", "other", 404) == 1
    assert told.of("mlxr:model_loads_total") == 1
    kernels = [labels["kernel"] for labels in told.labels("mlxr:kernel_launches_total")]
    launches = [told.of("mlxr:kernel_launches_total", kernel=kernel) for kernel in kernels]
    assert min(launches) > 0 and sum(launches) > told.of("mlxr:steps_total")
    (config,) = told.labels("vllm:cache_config_info")
    blocks = [told.of("mlxr:blocks", state=state) for state in ("free", "cached", "shared", "own")]
    assert config["num_gpu_blocks"] == str(int(sum(blocks))) and config["cache_dtype"] == "f32"


def test_counters_go_on_when_a_model_is_loaded_anew(own: RunningServer) -> None:
    ask(own, max_tokens=4)
    before = scrape(own)
    assert own.do(lambda: own.pool.unload("tiny"))
    cold = scrape(own)
    assert cold.of("mlxr:model_loaded") == 0 and cold.of("mlxr:model_unloads_total") == 1
    ask(own, max_tokens=4)
    after = scrape(own)
    for name, more in [("vllm:generation_tokens_total", 4), ("vllm:e2e_request_latency_seconds_count", 1)]:
        assert before.of(name) == cold.of(name) == after.of(name) - more
    kernel = before.labels("mlxr:kernel_launches_total")[0]["kernel"]
    first, second, third = (told.of("mlxr:kernel_launches_total", kernel=kernel) for told in (before, cold, after))
    assert first == second <= third


def test_counters_go_on_when_an_engine_fails(own: RunningServer) -> None:
    ask(own, max_tokens=4)
    before = scrape(own)
    ask(own, max_tokens=3)  # no scrape has seen these tokens before the engine fails

    def broken() -> bool:
        raise SystemExit("the thread ends")

    engine = own.do(lambda: own.pool.find("tiny").loaded).engine
    engine.model.core.step = broken
    assert own.http.post("/v1/completions", json={"model": "tiny", "prompt": PROMPT}).status_code == 503
    engine._thread.join(30)
    name, loads = "vllm:generation_tokens_total", "mlxr:model_loads_total"
    assert scrape(own).of(name) == before.of(name) + 3
    ask(own, max_tokens=2)
    assert scrape(own).of(name) == before.of(name) + 5
    assert scrape(own).of(loads) == before.of(loads) + 1 == scrape(own).of("mlxr:model_unloads_total") + 1


def test_what_is_loaded_for_embeddings_is_told(own: RunningServer) -> None:
    name, other = "tiny (embeddings)", "vllm:prompt_tokens_total"
    before = scrape(own)
    told = own.http.post("/v1/embeddings", json={"model": "tiny", "input": PROMPT}).json()
    after = scrape(own)
    assert after.of(other, name) == told["usage"]["prompt_tokens"] and after.of(other) == before.of(other)
    running = {entry["name"]: entry for entry in own.http.get("/api/ps").json()["models"]}
    assert running[name]["model"] == "tiny" and running[name]["size"] == after.of("mlxr:model_bytes", name) > 0
    listed = {entry["name"]: entry for entry in own.http.get("/status").json()["models"]}
    assert listed[name]["state"] == "loaded" and listed[name]["bytes"] == running[name]["size"]
    views = {view["name"]: view for view in own.http.get("/inspector/models").json()}
    assert views[name]["can_chat"] is False and views[name]["planned_bytes"] == running[name]["size"]
    arena = own.http.get("/inspector/arena", params={"model": name}).json()
    assert arena["groups"][0]["num_blocks"] == sum(
        after.of("mlxr:blocks", name, state=s) for s in ("free", "cached", "shared", "own")
    )
    assert own.http.post("/inspector/load", params={"model": name}).json()["name"] == name
    assert own.do(lambda: own.pool.unload("tiny"))
    assert name not in {view["name"] for view in own.http.get("/inspector/models").json()}
    cold = scrape(own)
    assert cold.of(other, name) == after.of(other, name) and cold.of("mlxr:model_loaded", name) == 0


def test_a_scrape_waits_for_no_load_and_no_engine(own: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    gated.gate.clear()
    asked = threading.Thread(target=ask, args=(own,), kwargs={"model": "gated", "max_tokens": 1})
    asked.start()
    while own.http.get("/metrics") and own.pool.find("gated").state != "loading":
        pass
    assert scrape(own).of("mlxr:model_loaded", "gated") == 0
    gated.gate.set()
    asked.join(30)
    before = scrape(own)
    assert before.of("mlxr:model_loaded", "gated") == 1
    dtypes = {each["model_name"]: each["cache_dtype"] for each in before.labels("vllm:cache_config_info")}
    assert dtypes["gated"] == "f16", "what CPUs have, whatever the plan chose for GPUs"
    monkeypatch.setattr(server_metrics, "_ASK_SECONDS", 0.01)
    stuck, loaded = threading.Event(), own.pool.find("gated").loaded
    assert loaded is not None
    with monkeypatch.context() as patch:
        stats = loaded.engine.stats
        patch.setattr(loaded.engine, "stats", lambda: stuck.wait(30) and stats())
        now = [scrape(own) for _ in range(20)][-1]  # more than there are threads
        stuck.set()
    assert now.of("vllm:generation_tokens_total", "gated") == before.of("vllm:generation_tokens_total", "gated") == 1


def test_tiers_are_told_while_their_model_is_loaded(own: RunningServer) -> None:
    gated.gate.set()
    ask(own, model="gated", max_tokens=1)
    assert own.do(lambda: own.pool.find("gated").loaded).engine.stats().tiers["memory_bytes"] == 0
    told = scrape(own)
    assert told.of("mlxr:tier_bytes", "gated", tier="memory") == told.of("mlxr:tier_blocks", "gated", tier="disk") == 0
    assert told.of("mlxr:tier_hits_total", "gated", tier="memory") == 0
    assert own.do(lambda: own.pool.unload("gated"))
    assert not any(labels["model_name"] == "gated" for labels in scrape(own).labels("mlxr:tier_bytes"))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 3}),
        ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 3, "stream": True}),
        ("/v1/completions", {"prompt": PROMPT, "max_tokens": 3}),
        ("/v1/responses", {"input": PROMPT, "max_output_tokens": 3}),
        ("/v1/messages", {"messages": CHAT, "max_tokens": 3}),
        ("/api/chat", {"messages": CHAT, "options": {"num_predict": 3}}),
        ("/api/generate", {"prompt": PROMPT, "options": {"num_predict": 3}}),
        ("/api/generate", {"prompt": PROMPT, "raw": True, "options": {"num_predict": 3}}),
    ],
)
def test_answers_of_every_api_are_measured(server: RunningServer, path: str, body: dict[str, Any]) -> None:
    before = scrape(server)
    server.http.post(path, json={"model": "tiny"} | body).raise_for_status()
    after = scrape(server)
    for name in ("vllm:time_to_first_token_seconds_count", "vllm:e2e_request_latency_seconds_count"):
        assert after.of(name) == before.of(name) + 1
    assert after.requests("POST", path, 200) >= 1


def test_each_model_has_a_meter_of_its_own() -> None:
    source = tiny_source()
    assert replace(source, name="other").meter is not source.meter


def test_other_forms(own: RunningServer) -> None:
    answer = own.http.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


def test_a_histogram_counts_as_prometheus_defines_it() -> None:
    histogram = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 2.0):
        histogram.observe(seconds)
    assert histogram.buckets == [("0.1", 2), ("1.0", 3), ("+Inf", 4)]
    assert histogram.sum == pytest.approx(2.65)
