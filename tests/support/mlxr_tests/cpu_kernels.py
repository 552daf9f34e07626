"""Single C kernels, rendered, compiled and run by real threads on NumPy arrays."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.targets.cpu.format_headers import affine_definitions
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuKernel
from mlxr.compiler.targets.cpu.unit import headers
from mlxr.compiler.targets.environment import environment
from mlxr_tests.c_harness import address, aligned, c_library
from mlxr_tests.packed import planes_of

HEADERS = headers(())
"""All headers except those of quantised formats."""

_RUN = """
static mlxr_model test_model;
static mlxr_worker test_workers[64];
static void *const *a;
static int test_kernel;

int start(int threads, size_t thread_bytes, size_t shared_bytes) {
    uint8_t *shared = mlxr_pool_memory(shared_bytes);
    test_model.workers = test_workers;
    test_model.threads = threads;
    for (int i = 0; i < threads; i++)
        test_workers[i] = (mlxr_worker){&test_model, i, threads, mlxr_pool_memory(thread_bytes), shared};
    return mlxr_pool_start(&test_model, threads);
}

void stop(void) {
    mlxr_pool_stop(&test_model);
    for (int i = 0; i < test_model.threads; i++) free(test_workers[i].scratch);
    free(test_workers[0].shared);
}

static void test_program(mlxr_worker *w, const mlxr_batch *b) {
    switch (test_kernel) { CALLS }
}

void run(int kernel, int tokens, int rows, const int32_t *token_ids, const int32_t *logit_rows, int seqs,
         const int32_t *query_start, const int32_t *state_table, int state_columns, uint8_t *const *stores,
         void *const *arguments) {
    mlxr_batch batch = {.tokens = tokens, .rows = rows, .token_ids = token_ids, .logit_rows = logit_rows,
                        .seqs = seqs, .query_start = query_start, .state_table = state_table,
                        .state_columns = state_columns};
    test_model.stores = stores;
    test_kernel = kernel;
    a = arguments;
    mlxr_pool_run(&test_model, test_program, &batch);
}
"""

_PACK = """
int pack_@(uint8_t *dst, const uint8_t *const *planes, int rows, int blocks) {
    const int32_t row_bytes[] = {PLANE_BYTES};
    enum { PLANES = sizeof row_bytes / sizeof *row_bytes };
    mlxr_packing packing = {@_pack_panel, rows, blocks, PLANES, {0}, 16 * BLOCK_BYTES * blocks};
    memcpy(packing.row_bytes, row_bytes, sizeof row_bytes);
    mlxr_pack_panels(&packing, dst, planes, 0, (rows + 15) / 16);
    return 0;
}
"""


def kernels_code(kernels: Sequence[CpuKernel]) -> str:
    """The text of the kernels, named kernel_0 and so on, after their helpers."""
    env = environment()
    helpers = dict.fromkeys(helper for kernel in kernels for helper in kernel.helpers)
    texts = [env.get_template(f"cpu/{helper.template}").render(h=helper) for helper in helpers]
    for index, kernel in enumerate(kernels):
        texts.append(env.get_template(f"cpu/{kernel.template}").render(k=kernel, name=f"kernel_{index}"))
    return "\n".join(texts)


def _formats(kernels: Sequence[CpuKernel]) -> set[WeightFormat]:
    """The formats of the matrices that the kernels read."""
    helpers = [helper for kernel in kernels for helper in kernel.helpers]
    return {reader.format for reader in (*helpers, *kernels) if hasattr(reader, "format")}


def _packs(formats: set[WeightFormat]) -> str:
    texts = []
    for fmt in sorted(fmt for fmt in formats if fmt.is_quantised):
        plane_bytes = ", ".join(f"{plane.block_bytes} * blocks" for plane in fmt.planes)
        text = _PACK.replace("@", str(fmt)).replace("PLANE_BYTES", plane_bytes)
        texts.append(text.replace("BLOCK_BYTES", str(fmt.block_bytes)))
    return "".join(texts)


@dataclass(frozen=True)
class Sequences:
    """The sequences of a batch, for kernels that keep something of each.

    Attributes:
        query_start: [seqs + 1] i32: the first token of each.
        state_table: [seqs, columns] i32: see `Batch`.
        stores: the stores, by the numbers that the kernels have for them.
        layer: what kernels get as their layer.
    """

    query_start: np.ndarray
    state_table: np.ndarray
    stores: Sequence[np.ndarray]
    layer: int


def _call(index: int, kernel: CpuKernel) -> str:
    arguments = "".join(
        f", *(const int *)a[{i}]" if param.kind == "layer" else f", a[{i}]" for i, param in enumerate(kernel.params)
    )
    return f"case {index}: kernel_{index}(w, b{arguments}); break;"


class CpuKernels:
    """A library of kernels with waiting threads. Use it as a context manager, which ends the threads."""

    def __init__(
        self,
        kernels: Sequence[CpuKernel],
        threads: int,
        march: str = "native",
        compiler: tuple[str, ...] | None = None,
        flags: tuple[str, ...] = (),
    ) -> None:
        self.kernels = list(kernels)
        calls = " ".join(_call(index, kernel) for index, kernel in enumerate(kernels))
        formats = _formats(kernels)
        code = affine_definitions(formats) + kernels_code(kernels) + _RUN.replace("CALLS", calls) + _packs(formats)
        self.library = c_library(headers(formats), code, march, compiler, flags)
        thread_bytes, shared_bytes = (
            max(getattr(k, name) for k in kernels) for name in ("thread_bytes", "shared_bytes")
        )
        started = self.library.start(threads, ctypes.c_size_t(thread_bytes), ctypes.c_size_t(shared_bytes))
        assert started == 0, "the threads did not start"

    def __enter__(self) -> "CpuKernels":
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the threads."""
        self.library.stop()

    def pack(self, format: WeightFormat, native: np.ndarray) -> np.ndarray:
        """A matrix as kernels read it: float rows [rows, bytes] are unchanged, quantised rows become panels."""
        if not format.is_quantised:
            return native
        rows, row_bytes = native.shape
        packed = aligned(-(-rows // 16) * 16 * row_bytes, np.uint8)
        planes = planes_of(format, native)
        pointers = (ctypes.c_void_p * len(planes))(*(plane.ctypes.data for plane in planes))
        getattr(self.library, f"pack_{format}")(address(packed), pointers, rows, row_bytes // format.block_bytes)
        return packed

    def run(
        self,
        kernel: CpuKernel,
        arguments: Sequence[np.ndarray],
        tokens: int,
        token_ids: np.ndarray | None = None,
        logit_rows: np.ndarray | None = None,
        sequences: Sequences | None = None,
    ) -> None:
        """Calls a kernel on its arguments in order, with `tokens` tokens; the layer is that of the sequences."""
        given = iter(arguments)
        layer = np.array([sequences.layer if sequences else 0], np.int32)
        every = [layer if param.kind == "layer" else next(given) for param in kernel.params]
        pointers = (ctypes.c_void_p * len(every))(*(a.ctypes.data for a in every))
        rows = 0 if logit_rows is None else len(logit_rows)
        ids, gather = (None if array is None else address(array) for array in (token_ids, logit_rows))
        kept = (0, None, None, 0, None)
        if sequences is not None:
            stores = (ctypes.c_void_p * len(sequences.stores))(*(a.ctypes.data for a in sequences.stores))
            seqs, columns = sequences.state_table.shape
            kept = (seqs, address(sequences.query_start), address(sequences.state_table), columns, stores)
        self.library.run(self.kernels.index(kernel), tokens, rows, ids, gather, *kept, pointers)
