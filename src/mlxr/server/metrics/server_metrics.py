"""The metrics of one app, in vLLM's names where they mean the same, else in ours."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from mlxr.runtime.engine.core_stats import CoreStats
from mlxr.runtime.engine.engine_thread import EngineThread
from mlxr.runtime.engine.errors import EngineError
from mlxr.server.metrics.meter import COUNTERS, TIER_COUNTERS, Meter
from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.pool.served_model import ServedModel

_ASK_SECONDS = 1.0
"""How long a scrape waits for an engine, which answers between two steps; then it gets what the last one got."""
_LABELS = ("model_name", "engine")
_COUNTERS = {
    "vllm:prompt_tokens": ("prompt_tokens", "Tokens of the prompts that were admitted."),
    "vllm:generation_tokens": ("generated_tokens", "Tokens of answers."),
    "vllm:prefix_cache_queries": ("prompt_tokens", "Tokens that were looked for in the prefix cache."),
    "vllm:prefix_cache_hits": ("cached_tokens", "Tokens that the prefix cache or a tier had."),
    "vllm:num_preemptions": ("preemptions", "How often a request gave its blocks back to others."),
    "vllm:spec_decode_num_draft_tokens": ("draft_tokens", "Draft tokens that were tried."),
    "vllm:spec_decode_num_accepted_tokens": ("accepted_tokens", "Draft tokens that were right."),
    "mlxr:steps": ("steps", "Steps that ended."),
    "mlxr:failed_steps": ("failed_steps", "Steps that failed."),
    "mlxr:computed_tokens": ("computed_tokens", "Tokens that steps computed."),
    "mlxr:forced_tokens": ("forced_tokens", "Tokens of answers that a constraint left no choice for."),
    "mlxr:restored_tokens": ("restored_tokens", "Tokens of prompts that came from a tier."),
}
"""What an engine counts: the metric, the field of `CoreStats`, and what it is."""
_TIERS = {
    "mlxr:tier_hits": {"memory": "memory_hits", "disk": "disk_hits"},
    "mlxr:tier_blocks": {"memory": "memory_blocks", "disk": "disk_blocks"},
    "mlxr:tier_bytes": {"memory": "memory_bytes", "disk": "disk_bytes"},
    "mlxr:tier_written_blocks": {"disk": "written_blocks"},
    "mlxr:tier_dropped_blocks": {"disk": "dropped_blocks"},
    "mlxr:tier_damaged_blocks": {"disk": "damaged_blocks"},
}
"""What the tiers tell: the metric, and for each tier the field of their stats."""


@dataclass(frozen=True)
class _Reading:
    """What is known of a model's engines at one moment: totals of all of them, and the state of the one that runs."""

    totals: Mapping[str, int] = field(default_factory=dict)
    launches: Mapping[str, int] = field(default_factory=dict)
    now: CoreStats | None = None


@dataclass(frozen=True)
class _Named:
    """All models of one name: the present one, then those that had the name before and are still in use."""

    name: str
    forms: list[ServedModel]
    reading: _Reading

    @property
    def meter(self) -> Meter:
        return self.forms[0].source.meter

    @property
    def loaded(self) -> list[ServedModel]:
        return [form for form in self.forms if form.loaded is not None]


class ServerMetrics(Collector):
    """Collects from the models when it is asked; only requests are counted as they come.

    Attributes:
        http_requests: HTTP requests by method, route and status.
    """

    def __init__(self, pool: ModelPool) -> None:
        """Registers itself with a registry of its own: a process may have several apps.

        Args:
            pool: the models.
        """
        self._pool = pool
        self._readings: dict[str, _Reading] = {}
        self._asking: dict[EngineThread, asyncio.Future[CoreStats]] = {}
        # Threads of its own: those of the event loop take requests, and an engine in a long step keeps one waiting.
        self._threads = ThreadPoolExecutor(8, "mlxr-metrics")
        self.http_requests: Counter[tuple[str, str, str]] = Counter()
        self._registry = CollectorRegistry()
        self._registry.register(self)

    async def render(self, accept: str) -> tuple[bytes, str]:
        """All metrics as text, and its content type.

        Args:
            accept: the types that the client takes.
        """
        await asyncio.gather(*(self._read(name, forms) for name, forms in self._forms().items()))
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def close(self) -> None:
        """Waits for no engine any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _forms(self) -> dict[str, list[ServedModel]]:
        """What the pool has, by name."""
        forms: defaultdict[str, list[ServedModel]] = defaultdict(list)
        for form in self._pool.forms:
            forms[form.name].append(form)
        return forms

    async def _read(self, name: str, forms: list[ServedModel]) -> None:
        """Asks the engines of a name; if there is no answer in time, what was read before stays."""
        loaded = [form.loaded for form in forms]
        engines = [each.engine for each in loaded if each is not None]
        try:
            told = await asyncio.gather(*map(self._stats, engines))
        except (TimeoutError, EngineError):
            return
        if [form.loaded for form in forms] != loaded or any(form.state == "unloading" for form in forms):
            return  # its engine adds what it has counted to the meter just now
        meter = forms[0].source.meter
        totals, launches = Counter(meter.past), Counter(meter.past_launches)
        for stats in told:
            totals.update({name: getattr(stats, name) for name in COUNTERS})
            totals.update({name: int((stats.tiers or {}).get(name, 0)) for name in TIER_COUNTERS})
            launches.update(stats.launches)
        now = next((stats for engine, stats in zip(engines, told, strict=True) if engine.health() is None), None)
        self._readings[name] = _Reading(totals, launches, now)

    async def _stats(self, engine: EngineThread) -> CoreStats:
        """An engine's counters; of one that has failed, the last ones.

        Raises:
            TimeoutError: it does not answer in time.
            EngineError: it ends just now.
        """
        try:
            return await asyncio.wait_for(asyncio.shield(self._ask(engine)), _ASK_SECONDS)
        except EngineError:
            if (stats := engine.final_stats) is None:
                raise
            return stats

    def _ask(self, engine: EngineThread) -> asyncio.Future[CoreStats]:
        """What an engine tells; it is asked once, however many scrapes wait for it."""

        def told(asked: asyncio.Future[CoreStats]) -> None:
            del self._asking[engine]
            if not asked.cancelled():
                asked.exception()  # nobody may wait for it any more

        if engine not in self._asking:
            self._asking[engine] = asyncio.get_running_loop().run_in_executor(self._threads, engine.stats)
            self._asking[engine].add_done_callback(told)
        return self._asking[engine]

    def describe(self) -> Iterable[Metric]:
        """Nothing: so that registering does not collect."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """What was read last."""
        models = [_Named(name, forms, self._readings.get(name, _Reading())) for name, forms in self._forms().items()]
        yield from _totals(models)
        yield from _states(models)
        yield from _tiers(models)
        yield from _pool(models)
        yield from _answers(models)
        launches = CounterMetricFamily("mlxr:kernel_launches", "Launches of kernels.", labels=(*_LABELS, "kernel"))
        for model in models:
            for kernel, count in sorted(model.reading.launches.items()):
                launches.add_metric((model.name, "0", kernel), count)
        yield launches
        requests = CounterMetricFamily("mlxr:http_requests", "HTTP requests.", labels=("method", "path", "status"))
        for labels, count in sorted(self.http_requests.items()):
            requests.add_metric(labels, count)
        yield requests


_Models = list[_Named]


def _totals(models: _Models) -> Iterator[Metric]:
    for name, (counter, about) in _COUNTERS.items():
        family = CounterMetricFamily(name, about, labels=_LABELS)
        for model in models:
            family.add_metric((model.name, "0"), model.reading.totals.get(counter, 0))
        yield family


def _states(models: _Models) -> Iterator[Metric]:
    nothing = CoreStats()
    running = GaugeMetricFamily("vllm:num_requests_running", "Requests that have a sequence.", labels=_LABELS)
    waiting = GaugeMetricFamily("vllm:num_requests_waiting", "Requests that wait for a sequence.", labels=_LABELS)
    usage = GaugeMetricFamily(
        "vllm:kv_cache_usage_perc", "Share of the KV cache's blocks that are in use, 0 to 1.", labels=_LABELS
    )
    config = GaugeMetricFamily(
        "vllm:cache_config_info",
        "The KV cache of a loaded model.",
        labels=(*_LABELS, "block_size", "num_gpu_blocks", "cache_dtype", "enable_prefix_caching"),
    )
    blocks = GaugeMetricFamily("mlxr:blocks", "Blocks of the KV cache by state.", labels=(*_LABELS, "state"))
    batch = GaugeMetricFamily("mlxr:batch_sequences", "Sequences of the newest step.", labels=_LABELS)
    tokens = GaugeMetricFamily("mlxr:batch_tokens", "Tokens of the newest step.", labels=_LABELS)
    acceptance = GaugeMetricFamily(
        "mlxr:draft_acceptance_rate", "Accepted over tried draft tokens, since the model was loaded.", labels=_LABELS
    )
    for model in models:
        stats, labels = model.reading.now or nothing, (model.name, "0")
        running.add_metric(labels, stats.running)
        waiting.add_metric(labels, stats.waiting)
        usage.add_metric(labels, 1 - stats.blocks_free / stats.blocks if stats.blocks else 0)
        batch.add_metric(labels, stats.batch_sequences)
        tokens.add_metric(labels, stats.batch_tokens)
        if stats.acceptance_rate is not None:
            acceptance.add_metric(labels, stats.acceptance_rate)
        if (loaded := model.forms[0].loaded) is not None and stats.blocks:
            arena = loaded.engine.model.arena.geometry  # the plan's own may be that of another target
            config.add_metric((*labels, str(arena.block_size), str(stats.blocks), str(arena.cache_type), "True"), 1)
        used = stats.blocks - stats.blocks_free
        for state, count in {
            "free": stats.blocks_free - stats.blocks_cached,
            "cached": stats.blocks_cached,
            "shared": stats.blocks_shared,
            "own": used - stats.blocks_shared,
        }.items():
            blocks.add_metric((*labels, state), count)
    yield from (running, waiting, usage, config, blocks, batch, tokens, acceptance)


def _tiers(models: _Models) -> Iterator[Metric]:
    """Only of models with tiers."""
    for name, fields in _TIERS.items():
        counts_up = set(fields.values()) <= set(TIER_COUNTERS)
        family = (CounterMetricFamily if counts_up else GaugeMetricFamily)(
            name, f"{name.partition('_')[2].replace('_', ' ').capitalize()} of a tier.", labels=(*_LABELS, "tier")
        )
        for model in models:
            reading = model.reading
            if reading.now is not None and reading.now.tiers is not None:
                values = reading.totals if counts_up else reading.now.tiers
                for tier, key in fields.items():
                    family.add_metric((model.name, "0", tier), values[key])
        yield family


def _pool(models: _Models) -> Iterator[Metric]:
    is_loaded = GaugeMetricFamily("mlxr:model_loaded", "Whether the model is loaded.", labels=("model_name",))
    users = GaugeMetricFamily("mlxr:model_requests", "HTTP requests that use the model.", labels=("model_name",))
    size = GaugeMetricFamily("mlxr:model_bytes", "Planned memory of a loaded model.", labels=("model_name",))
    loads = CounterMetricFamily("mlxr:model_loads", "How often it was loaded.", labels=("model_name",))
    unloads = CounterMetricFamily("mlxr:model_unloads", "How often it was unloaded.", labels=("model_name",))
    for model in models:
        labels = (model.name,)
        is_loaded.add_metric(labels, bool(model.loaded))
        users.add_metric(labels, sum(form.users for form in model.forms))
        size.add_metric(labels, sum(form.planned_bytes for form in model.loaded))
        loads.add_metric(labels, model.meter.loads)
        unloads.add_metric(labels, model.meter.loads - len(model.loaded))
    yield from (is_loaded, users, size, loads, unloads)


def _answers(models: _Models) -> Iterator[Metric]:
    finished = CounterMetricFamily(
        "vllm:request_success", "Answers that ended, by why.", labels=(*_LABELS, "finished_reason")
    )
    first = HistogramMetricFamily(
        "vllm:time_to_first_token_seconds", "From a request to an answer's first token.", labels=_LABELS
    )
    following = HistogramMetricFamily(
        "vllm:inter_token_latency_seconds", "Between two tokens of an answer.", labels=_LABELS
    )
    request = HistogramMetricFamily(
        "vllm:e2e_request_latency_seconds", "From a request to an answer's end.", labels=_LABELS
    )
    for model in models:
        meter, labels = model.meter, (model.name, "0")
        for reason, count in meter.finished.items():
            finished.add_metric((*labels, reason), count)
        for family, histogram in ((first, meter.first_token), (following, meter.next_token), (request, meter.request)):
            family.add_metric(labels, buckets=histogram.buckets, sum_value=histogram.sum)
    yield from (finished, first, following, request)
