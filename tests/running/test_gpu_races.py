"""tests/gpu_races.py finds all places of a kernel's text where simdgroups are late, or where a mistake is planted."""

import re
import runpy
from pathlib import Path

from mlxr.runtime.hosts.cuda import nvrtc
from mlxr.runtime.hosts.cuda.build import cuda_source
from mlxr_tests.has_nvrtc import has_nvrtc
from mlxr_tests.specs import compiled, small_spec

SCRIPT = Path(__file__).parents[1] / "gpu_races.py"
FLAGS = ("--std=c++17", "--device-as-default-execution-space", "--gpu-architecture=compute_90a", "-dlto")


def test_every_place_is_found_and_what_is_made_compiles() -> None:
    script, artifact = runpy.run_path(str(SCRIPT)), compiled(small_spec())
    entry = artifact.kernel_entry("embed")
    text = cuda_source(entry, *artifact.kernel_sections(entry.name))
    for pattern, _ in (*script["LATE"], *script["PLANTS"].values()):
        assert 1 <= len(re.findall(pattern, text)) <= 2, pattern
    late = script["late"](text)
    assert late.count("mlxr_late(") > len(script["LATE"])
    if has_nvrtc():
        nvrtc.compile_cubin(entry.name, late, FLAGS)
