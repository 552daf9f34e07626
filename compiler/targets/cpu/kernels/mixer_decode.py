"""Attention of a decode step and the scan of a Mamba-2 block beside it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.attention import RopeWriteAttention
from mlxr.compiler.ir.ops.mamba2 import ConvSsd
from mlxr.compiler.ir.ops.mixer_decode import MixerDecode, parts_of
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuHelper, CpuKernel, Param
from mlxr.compiler.targets.cpu.kernels.attend_decode import CpuAttendDecode, lower_attend_decode
from mlxr.compiler.targets.cpu.kernels.ssd import CpuSsd, lower_ssd
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers


@dataclass(frozen=True)
class CpuMixerDecode(CpuKernel):
    """The scan, then attention; a thread need not wait for others between them.

    The scan comes first: attention leaves partial results in the scratch of threads, which others read.

    Attributes:
        scan: the scan.
        attend: attention, which has no scratch that threads share.
    """

    template = "mixer_decode.jinja"
    scan: CpuSsd
    attend: CpuAttendDecode

    @property
    def calls(self) -> tuple[CpuKernel, ...]:
        """Both."""
        return self.scan, self.attend

    @property
    def params(self) -> tuple[Param, ...]:
        """What both read, that of the scan with `scan_` before its name, both results, and the layer."""
        own = [param for kernel in self.calls for param in self._own(kernel)]
        read, made = ([param for param in own if (param.kind == "output") == is_made] for is_made in (False, True))
        return (*read, *made, Param("layer", "layer"))

    def _own(self, kernel: CpuKernel) -> Iterator[Param]:
        """The parameters that a call has for itself."""
        for param in kernel.params:
            if param.kind != "layer":
                yield replace(param, name=f"scan_{param.name}") if kernel is self.scan else param

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of each call."""
        names = [{param.name: param.name for param in kernel.params} for kernel in self.calls]
        names[0] = {name: name if name == "layer" else f"scan_{name}" for name in names[0]}
        return tuple(", ".join(of.values()) for of in names)

    @property
    def helpers(self) -> tuple[CpuHelper, ...]:
        """Those of both."""
        return tuple(dict.fromkeys((*self.scan.helpers, *self.attend.helpers)))

    @property
    def thread_bytes(self) -> int:
        """The most that one of them needs."""
        return max(kernel.thread_bytes for kernel in self.calls)

    @property
    def shared_bytes(self) -> int:
        """The most that one of them needs."""
        return max(kernel.shared_bytes for kernel in self.calls)


@lowers(MixerDecode)
def lower_mixers(lowering: CpuLowering, op: Op, _: MixerDecode) -> None:
    """Adds the call for an op; those of both where attention is several calls, to give the bits of a prefill step."""
    attention, scan = parts_of(op)
    begin = len(lowering.pending)
    lower_ssd(lowering, scan, scan.attrs_as(ConvSsd))
    lower_attend_decode(lowering, attention, attention.attrs_as(RopeWriteAttention))
    scans, *attends = lowering.pending[begin:]
    if len(attends) > 1:
        return
    (attends_once,) = attends
    assert isinstance(scans.body, CpuSsd) and isinstance(attends_once.body, CpuAttendDecode), "their rules say so"
    both = CpuMixerDecode("attend_decode_scan", scans.body, attends_once.body)
    inputs, outputs = (*scans.inputs, *attends_once.inputs), (*scans.outputs, *attends_once.outputs)
    lowering.pending[begin:] = [replace(attends_once, body=both, inputs=inputs, outputs=outputs)]
