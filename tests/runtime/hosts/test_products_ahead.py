"""Products whose kernels are loaded before prompts are recorded: those that the recordings plan, in their order."""

import ctypes
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest

from mlxr.compiler.schedule.geometry import Geometry
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine.warm_up import warm_up
from mlxr.runtime.hosts.cuda import host as cuda_host
from mlxr.runtime.hosts.cuda import products_ahead, recorded_prompts
from mlxr.runtime.hosts.cuda.device import has_cuda
from mlxr.runtime.hosts.cuda.host import CudaHost
from mlxr.runtime.hosts.cuda.matrix_library import WORKSPACE_BYTES, Product, ProductLaunch
from mlxr.runtime.hosts.cuda.products_ahead import begin_products, operand_bytes, products_of_prompts
from mlxr.runtime.hosts.mlx.host import MlxHost
from mlxr.runtime.weights.open_weights import open_weights
from mlxr_tests.fake_card import SimLauncher, use_card
from mlxr_tests.fake_driver import FakeDriver, use_driver
from mlxr_tests.format_planes import random_buffers
from mlxr_tests.specs import UNPACKED, compiled, small_spec
from mlxr_tests.storyteller import Q8_0

pytestmark = pytest.mark.skipif(has_cuda(), reason="here the real one runs")
PRODUCTS = dict(chunk_padding=16, mlx_min_rows=18, mlx_quantised_min_rows=18)
SPEC = small_spec(**UNPACKED | {"weights": {"default": "q4_k"}}, model__context=100, model__num_layers=1)


@pytest.mark.usefixtures("eager")
def test_they_are_those_of_the_steps_at_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each recording looks up what an earlier process chose for exactly the products that are new in it."""
    artifact = compiled(SPEC, Geometry.of(**PRODUCTS))
    card, new, seen, run = SimLauncher(artifact), list[list[Product]](), set[Product](), list[int]()
    use_card(monkeypatch, artifact, card)
    card.record(monkeypatch)

    def recorded(launches: Sequence[object], *_: object) -> SimpleNamespace:
        found = dict.fromkeys(launch.product for launch in launches if isinstance(launch, ProductLaunch))
        new.append([product for product in found if product not in seen])
        seen.update(found)
        number = len(new)  # what it gives is of no importance
        return SimpleNamespace(launch=lambda *_: run.append(number), upload=lambda _: None)

    monkeypatch.setattr(recorded_prompts, "LaunchGraph", recorded)
    host = CudaHost(artifact, random_buffers(artifact.plan)[0], Arena(artifact.plan.arena))
    warm_up(host, Pager.from_geometry(artifact.plan.arena))
    assert {*run} < {*range(1, len(new) + 1)} and run, "most sizes are prepared and not run"
    assert seen and [group for group in new if group] == list(products_of_prompts(artifact.plan))


def test_each_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands of no launch overlap or end behind the memory, which is freed. Without enough of it, none begins."""
    plan = compiled(SPEC, Geometry.of(**PRODUCTS)).plan
    driver, free, loaded = use_driver(monkeypatch), [1 << 33], list[Product]()

    class Library:
        def load(
            self, products: Sequence[Product], launch_of: Callable[[Product], ProductLaunch], _: ctypes.c_void_p
        ) -> None:
            ((first, memory),) = driver.on_card.items()
            for product in products:
                loaded.append(product)
                launch, size = launch_of(product), product.dtype.size_bytes
                counts = (product.stride, 0, product.features, 0, product.features)
                lengths = [size * product.rows * count for count in counts]
                lengths[1], lengths[3] = size * product.features * product.columns, size * product.features
                ends = [place + length for place, length in zip(launch[1:6], lengths, strict=True)]
                assert all(end <= begin for end, begin in zip(ends, launch[2:7], strict=True)) and launch.x >= first
                assert launch.workspace + WORKSPACE_BYTES <= first + operand_bytes(product) <= first + memory.size

    def tell(left: ctypes.c_size_t, _: object) -> int:
        left._obj.value = free[0]  # type: ignore[attr-defined]  # by reference
        return 0

    monkeypatch.setattr(FakeDriver, "cuMemGetInfo_v2", staticmethod(tell), raising=False)
    monkeypatch.setattr(products_ahead, "matrix_library", Library)
    (thread := begin_products(plan)).join()
    assert not thread.daemon, "the libraries that it calls may be taken down before it ends"
    assert loaded == [product for group in products_of_prompts(plan) for product in group]
    assert not driver.on_card and not driver.retained
    free[0], driver.allocated = 1 << 31, 0
    begin_products(plan).join()
    assert not driver.allocated


def test_they_begin_before_weights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    artifact, done = compiled(SPEC, Geometry.of(**PRODUCTS)), list[object]()
    monkeypatch.setattr(cuda_host, "begin_products", done.append)
    monkeypatch.setattr(MlxHost, "from_file", classmethod(lambda *_, **__: done.append("weights")))
    CudaHost.from_file(artifact, open_weights(Q8_0), Arena(artifact.plan.arena))
    assert done == [artifact.plan, "weights"]
