"""A C kernel alone, rendered, compiled and run by real threads on NumPy arrays."""

import ctypes
from collections.abc import Sequence

import numpy as np

from mlxr.compiler.codegen.cpu.kernel import CpuKernel
from mlxr.compiler.codegen.environment import environment
from mlxr.compiler.formats import WeightFormat
from mlxr_tests.c_harness import address, aligned, c_library

HEADERS = (
    *("common.h", "simd.h", "math.h", "activations.h", "formats/integer_dot.h", "formats/interleave.h"),
    *("formats/q8_0.h", "formats/q4_0.h", "formats/k_scales.h", "formats/q4_k.h", "formats/q5_k.h", "formats/q6_k.h"),
    *("formats/panels.h", "inputs.h", "float_rows.h", "gemm.h", "columns.h", "pool.h", "projection.h"),
)

_RUN = """
static mlxr_model test_model;
static mlxr_worker test_workers[64];
static void *const *test_arguments;

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
    void *const *a = test_arguments;
    (void)a;
    CALL;
}

// Returns the seconds of the fastest of `times` calls.
double run(int tokens, int rows, const int32_t *token_ids, const int32_t *logit_rows, void *const *arguments,
           int times) {
    mlxr_batch batch = {.tokens = tokens, .rows = rows, .token_ids = token_ids, .logit_rows = logit_rows};
    test_arguments = arguments;
    double best = 1e9;
    for (int i = 0; i < times; i++) {
        int64_t begin = mlxr_now_ns();
        mlxr_pool_run(&test_model, test_program, &batch);
        double seconds = (double)(mlxr_now_ns() - begin) * 1e-9;
        if (seconds < best) best = seconds;
    }
    return best;
}
"""

_PACK = """
void pack_@(uint8_t *dst, const uint8_t *src, int last, int row_bytes, int blocks) {
    for (int first = 0; first < last; first += 16) {
        const uint8_t *at[16];
        for (int i = 0; i < 16; i++) at[i] = first + i < last ? src + (size_t)(first + i) * (size_t)row_bytes : NULL;
        @_pack_panel(dst + (size_t)first * (size_t)row_bytes, at, blocks);
    }
}
"""


def kernel_code(kernel: CpuKernel) -> str:
    """The kernel's text with what it needs before it, as `kernel`."""
    env = environment()
    helpers = [env.get_template(f"cpu/{h.template}").render(h=h) for h in dict.fromkeys(getattr(kernel, "helpers", ()))]
    return "\n".join([*helpers, env.get_template(f"cpu/{kernel.template}").render(k=kernel, name="kernel")])


class CpuKernelRun:
    """A kernel's library with threads that wait. Use as a context manager."""

    def __init__(self, kernel: CpuKernel, threads: int, march: str = "native", compiler: tuple[str, ...] | None = None):
        arguments = ", ".join(["w", "b", *(f"a[{i}]" for i in range(len(kernel.params)))])
        packs = "".join(_PACK.replace("@", str(f)) for f in WeightFormat if f.is_quantised)
        code = kernel_code(kernel) + _RUN.replace("CALL", f"kernel({arguments})") + packs
        self.library = c_library(HEADERS, code, march, compiler)
        self.library.run.restype = ctypes.c_double
        assert (
            self.library.start(threads, ctypes.c_size_t(kernel.thread_bytes), ctypes.c_size_t(kernel.shared_bytes)) == 0
        )

    def __enter__(self) -> "CpuKernelRun":
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the threads."""
        self.library.stop()

    def pack(self, format: WeightFormat, native: np.ndarray) -> np.ndarray:
        """A matrix as kernels read it: native rows [rows, bytes] of a float format, panels of a quantised one."""
        if not format.is_quantised:
            return native
        rows, row_bytes = native.shape
        packed = aligned(-(-rows // 16) * 16 * row_bytes, np.uint8)
        pack = getattr(self.library, f"pack_{format}")
        pack(address(packed), address(native), rows, row_bytes, row_bytes // format.block_bytes)
        return packed

    def run(
        self,
        arguments: Sequence[np.ndarray],
        tokens: int,
        token_ids: np.ndarray | None = None,
        logit_rows: np.ndarray | None = None,
        times: int = 1,
    ) -> float:
        """Calls the kernel, `times` times; seconds of the fastest."""
        pointers = (ctypes.c_void_p * len(arguments))(*(a.ctypes.data for a in arguments))
        rows = 0 if logit_rows is None else len(logit_rows)
        ids, gather = (None if a is None else address(a) for a in (token_ids, logit_rows))
        return float(self.library.run(tokens, rows, ids, gather, pointers, times))
