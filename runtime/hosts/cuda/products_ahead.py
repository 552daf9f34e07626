"""Loads the cuBLASLt kernels that a model's prompts will need, while our own are still being compiled.

The library loads a kernel when it is first started, which takes 1 to 10 ms of one CPU: 1.4 s for all that are tried for
the products of all padded sizes, and half a second for those that were chosen before. So each is started once, in a
thread of its own, on memory of its own. Nobody reads the results.
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import suppress

from mlxr.compiler.artifact import MatmulCall, Plan
from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.binding import Dims
from mlxr.runtime.hosts.cuda.driver import call, in_context, own_stream
from mlxr.runtime.hosts.cuda.matrix_library import (
    WORKSPACE_BYTES,
    MatrixLibrary,
    Product,
    ProductLaunch,
    matrix_library,
)
from mlxr.runtime.hosts.cuda.recorded_memory import is_recorded
from mlxr.runtime.hosts.cuda.recorded_products import is_recordable, product_of

_FREE_BYTES = 4 << 30
"""Memory that must be left when the weights are there."""


def begin_products(plan: Plan) -> threading.Thread:
    """Begins. Nothing is done if prompts of the plan have no products that are recorded, or if memory is short."""
    # The process ends after it, also when a load fails: CUDA's libraries must not be taken down while one is at work.
    thread = threading.Thread(target=_load, args=(plan,), name="mlxr-products", daemon=False)
    thread.start()
    return thread


def _load(plan: Plan) -> None:
    groups = list(products_of_prompts(plan)) if is_recorded(plan) else []
    if not groups:
        return
    size_bytes = max(operand_bytes(product) for group in groups for product in group)
    with suppress(HostError):
        library, free = matrix_library(), ctypes.c_size_t()
        with in_context():
            call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(ctypes.c_size_t()))
        if free.value >= plan.program("metal").memory.weights_bytes + size_bytes + _FREE_BYTES:
            _run(library, groups, size_bytes)


def products_of_prompts(plan: Plan) -> Iterator[list[Product]]:
    """The products that each step at load is the first to have, in order; see runtime/engine/warm_up.py."""
    phase, seen = plan.program("metal").phase("prefill"), set[Product]()
    sizes = [size for size in reversed(plan.padded_sizes) if size <= plan.padded_tokens(plan.max_tokens)]
    steps = [(size, rows) for size in sizes for rows in ((0, 1) if size == sizes[0] else (1,))]
    for tokens, rows in steps:
        tiles = -(-tokens // plan.query_tile)
        dims: Dims = {"tokens": tokens, "seqs": 1, "rows": rows, "tiles": tiles, "context": tokens, "copies": 0}
        running = [launch for launch in phase.launches if launch.runs(dims, library=True)]
        found: list[Product] = []
        for launch in running:
            if isinstance(launch.body, MatmulCall) and is_recordable(launch.body):
                found.append(product_of(launch.body, dims))
        new = [product for product in dict.fromkeys(found) if product not in seen]
        seen.update(new)
        if new:
            yield new


def operand_bytes(product: Product) -> int:
    """Memory for all operands of a product, and for what it works in."""
    numbers = product.rows * (product.stride + 2 * product.features) + product.features * (product.columns + 1)
    return numbers * product.dtype.size_bytes + WORKSPACE_BYTES + 6 * _ALIGNMENT


_ALIGNMENT = 256


def _run(library: MatrixLibrary, groups: list[list[Product]], size_bytes: int) -> None:
    memory = ctypes.c_uint64()
    with in_context():
        call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(size_bytes))
        try:
            with own_stream() as stream:
                for group in groups:
                    library.load(group, lambda product: _launch(product, memory.value), stream)
        finally:
            call("cuMemFree_v2", memory)


def _launch(product: Product, first: int) -> ProductLaunch:
    """A product of what lies from an address on."""
    rows, features, columns = product.rows, product.features, product.columns
    counts = (rows * product.stride, features * columns, rows * features, features, rows * features)
    places = []
    for count in counts:
        places.append(first)
        first += -(-count * product.dtype.size_bytes // _ALIGNMENT) * _ALIGNMENT
    x, weight, added, bias, out = places
    return ProductLaunch(product, x, weight, added, bias, out, first)
