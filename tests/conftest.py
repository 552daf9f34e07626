"""Options and fixtures of all tests."""

import argparse
import gc
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Names are looked up in a registry that is not there, not in that of whoever runs the tests.
os.environ["MLXR_DATA_DIR"] = str(Path(tempfile.gettempdir()) / "mlxr-tests-without-registry")

# The oracle of f32 kernels is f32 arithmetic; with TF32, MLX on a GPU would not compute in f32.
os.environ["MLX_ENABLE_TF32"] = "0"


def _gpus() -> list[str]:
    """The NVIDIA GPUs that tests may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return visible.split(",") if visible else []
    if shutil.which("nvidia-smi") is None:
        return []
    output = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    return [str(number) for number in range(sum(line.startswith("GPU ") for line in output.splitlines()))]


# Workers of pytest-xdist are as many as cores: threads of NumPy's products, which spin, would slow the other workers.
if _worker := os.environ.get("PYTEST_XDIST_WORKER"):
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# They are spread over the GPUs.
if _worker and (_visible := _gpus()):
    os.environ["CUDA_VISIBLE_DEVICES"] = _visible[int(_worker.removeprefix("gw")) % len(_visible)]

# If Python may not write bytecode beside files, each worker, and each command of a test, would compile all modules.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    caches = os.environ.get("MLXR_CACHE_DIR") or Path.home() / ".cache/mlxr"
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(Path(caches).absolute() / "python"))
if prefix := os.environ.get("PYTHONPYCACHEPREFIX"):  # also a worker's, whose parent has set it
    sys.pycache_prefix, sys.dont_write_bytecode = prefix, False

# A background job of a script ignores Ctrl-C, and so would the commands that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --all, --rest, --share, --isa, --repeat and --update-golden."""
    parser.addoption("--all", action="store_true", help="also run the long tests, which `make test` leaves out")
    parser.addoption("--rest", action="store_true", help="run only the long tests")
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")
    parser.addoption(
        "--repeat", type=int, default=1, help="run each kernel test on cuda this often, with other numbers"
    )
    parser.addoption(
        "--isa", metavar="NAME", help="hold host cpu to this instruction set, such as x86-64-v3, as MLXR_CPU_ARCH does"
    )
    parser.addoption(
        "--share", type=_share, default=(0, 1), metavar="I/N", help="run every N-th test from I on, of 0..N-1"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Lets the short tests draw the same random examples each time, so that only changes make them fail."""
    if isa := config.getoption("--isa"):
        os.environ["MLXR_CPU_ARCH"] = isa
    config.pluginmanager.register(_FewerItems())
    if worker := getattr(config, "workerinput", None):
        from mlxr_tests.first_worker import FirstWorker

        mark = Path(tempfile.gettempdir(), f"mlxr-tests-are-read-{worker['testrunuid']}")
        config.pluginmanager.register(FirstWorker(mark, is_first=worker["workerid"] == "gw0"))
    is_long = config.getoption("--all") or config.getoption("--rest")
    settings.register_profile("mlxr", derandomize=not is_long, deadline=None)
    settings.load_profile("mlxr")
    if not is_long:  # most of the time goes into compiling; tests of the compilation itself want the hosts' own flags
        from mlxr_tests.quick_c import use_quick_c

        use_quick_c()
        os.environ.setdefault("MLXR_SIM_CFLAGS", "-O0")


def _share(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a share; give I/N with I from 0 to N - 1, such as 0/4")
    return int(index), int(count)


class _FewerItems:
    """Drops tests that do not run before others' hooks sort and look through all that there are."""

    @staticmethod
    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keeps the short tests, the long ones, or all."""
        if config.getoption("--rest"):
            _keep(config, items, [item for item in items if item.get_closest_marker("long")])
        elif not (config.getoption("--all") or any("::" in argument for argument in config.args)):
            _keep(config, items, [item for item in items if not item.get_closest_marker("long")])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps this share of the tests that -k and -m chose among those."""
    index, count = config.getoption("--share")
    _keep(config, items, items[index::count])


def pytest_collectstart() -> None:
    """Collects no garbage while tests are collected, which makes a million objects that stay."""
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Has garbage collections look only at what tests make, and less often: they took a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()


def _keep(config: pytest.Config, items: list[pytest.Item], selected: list[pytest.Item]) -> None:
    if len(selected) == len(items):
        return
    kept = set(selected)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = selected


SLOW_S = 5.0
_cpu: Counter[str] = Counter()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Counts the CPU time of this process and of the programs that it started."""
    for name, who in (("tests", resource.RUSAGE_SELF), ("programs that they start", resource.RUSAGE_CHILDREN)):
        if who == resource.RUSAGE_CHILDREN and session.config.getoption("numprocesses", None):
            continue  # its children are the workers, which tell of themselves
        used = resource.getrusage(who)
        _cpu[name] += used.ru_utime + used.ru_stime
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["cpu"] = dict(_cpu)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Adds the CPU time of a worker of pytest-xdist."""
    _cpu.update(getattr(node, "workeroutput", {}).get("cpu", {}))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Prints the total time of the tests, the slowest short tests, and how to run a share again."""
    spent: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                spent[report.nodeid] += report.duration
    cpu = ", ".join(f"{seconds:.0f} s in {name}" for name, seconds in _cpu.items())
    terminalreporter.write_line(f"{sum(spent.values()):.0f} s of tests; of CPU time {cpu}")
    if not (config.getoption("--all") or config.getoption("--rest")):
        for test, seconds in spent.most_common(20):
            if seconds > SLOW_S:
                terminalreporter.write_line(f"{seconds:.0f} s for one short test: {test}; see tests/README.md")
    elif config.getoption("--rest") and {"failed", "error"} & terminalreporter.stats.keys():
        share = "{}/{}".format(*config.getoption("--share"))
        terminalreporter.write_line(f"this was share {share} of the long tests; again: make test-rest SHARE={share}")


@pytest.fixture(scope="session", autouse=True)
def _two_cpus() -> Iterator[None]:
    """Lets tests ask for two threads on a machine with one CPU, where users are refused them."""
    from mlxr.runtime.machine import threads

    real, root = threads.usable_cpus, threads._ROOT
    with pytest.MonkeyPatch.context() as patch:
        if real() < 2:
            patch.setattr(threads, "usable_cpus", lambda of=root: 2 if of is root else real(of))
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_thread(pytestconfig: pytest.Config) -> Iterator[None]:
    """In workers of short tests, which are as many as cores, host cpu runs one thread unless a test wants more.

    Threads that wait for others look for them, and for the next step, at the cost of another worker.
    """
    from mlxr.runtime.machine import threads

    cores, root = threads._cores, threads._ROOT
    is_long = pytestconfig.getoption("--all") or pytestconfig.getoption("--rest")
    with pytest.MonkeyPatch.context() as patch:
        if hasattr(pytestconfig, "workerinput") and not is_long:
            patch.setattr(threads, "_cores", lambda of: 1 if of is root else cores(of))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_idle_card() -> Iterator[None]:
    """Hides an NVIDIA card that MLX was not built for: commands tell of one that does not compute."""
    import mlx.core as mx

    with pytest.MonkeyPatch.context() as patch:
        if not mx.cuda.is_available():
            patch.setenv("CUDA_VISIBLE_DEVICES", "")
        yield


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether to write golden files."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def eager() -> Iterator[None]:
    """`mx.compile` does nothing: sim must see numbers."""
    import mlx.core as mx

    mx.disable_compile()
    yield
    mx.enable_compile()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs tests of kernels on sim and on a GPU; tests that plant faults run only on sim."""
    if "kernel_host" in metafunc.fixturenames:
        only_sim = metafunc.definition.get_closest_marker("sim_only")
        gpu = "metal" if sys.platform == "darwin" else "cuda"
        hosts = ["sim"] if only_sim else ["sim", gpu]
        metafunc.parametrize("kernel_host", hosts, indirect=True, scope="module")


@pytest.fixture(scope="module")
def kernel_host(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a test's kernels on the host of that name; skips a GPU's if there is none."""
    import mlx.core as mx

    from mlxr.runtime.hosts.cuda.device import has_cuda
    from mlxr_tests.kernel_host import kernel_host

    if request.param == "cuda" and not has_cuda():
        pytest.skip("no NVIDIA GPU")
    if request.param == "metal" and not mx.metal.is_available():
        pytest.skip("no Apple GPU")
    with kernel_host(request.param):
        yield request.param


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Repeats tests of kernels on a GPU: a fault that depends on the order of threads shows only in some runs."""
    count, call = pyfuncitem.config.getoption("--repeat"), getattr(pyfuncitem, "callspec", None)
    if count == 1 or call is None or call.params.get("kernel_host", "sim") == "sim":
        return None
    from mlxr_tests.repetition import repetition

    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    for number in range(count):
        with repetition(number):
            pyfuncitem.obj(**arguments)
    return True
