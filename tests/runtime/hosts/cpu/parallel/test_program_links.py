"""What Python and C both define for programs that exchange rows is the same."""

import ctypes
import re
import subprocess
from pathlib import Path

from mlxr.compiler.artifact import COLLECTIVES
from mlxr.runtime.hosts.cpu.parallel import program_links
from mlxr.runtime.hosts.cpu.toolchain import find_compilers
from mlxr_tests.storyteller import ROOT


def test_links_are_those_of_the_header(tmp_path: Path) -> None:
    header = (ROOT / "src/mlxr/templates/cpu/links.h").read_text("utf-8")
    shared = r"^(?:#define MLXR_\w+_BYTES .*|enum \{.*\};.*|struct mlxr_links \{\n(?:.*\n)*?\};)"
    kept = re.findall(shared, header, re.MULTILINE)
    fields = [name for name, _ in program_links._CLinks._fields_]
    numbers = ["MLXR_BOARD_BYTES", "MLXR_SHORT_BYTES", *(f"MLXR_{kind.upper()}" for kind in COLLECTIVES)]
    numbers += ["sizeof(struct mlxr_links)", *(f"offsetof(struct mlxr_links, {name})" for name in fields)]
    exported = f'__attribute__((visibility("default"))) int64_t numbers[] = {{{", ".join(numbers)}}};'
    source, library = tmp_path / "links.c", tmp_path / "links.so"
    source.write_text("\n".join(["#include <stddef.h>", "#include <stdint.h>", *kept, exported]))
    subprocess.run(find_compilers()[0].build_command(str(source), output=str(library)), check=True)
    links = program_links._CLinks
    assert list((ctypes.c_int64 * len(numbers)).in_dll(ctypes.CDLL(str(library)), "numbers")) == [
        program_links.BOARD_BYTES,
        program_links._SHORT_BYTES,
        *range(len(COLLECTIVES)),
        ctypes.sizeof(links),
        *(getattr(links, name).offset for name in fields),
    ]
