"""Attention of a decode step and the scan of a Mamba-2 block beside it: two kinds of threadgroups in one grid."""

from dataclasses import dataclass, replace

from mlxr.compiler.artifact.launch import Extent
from mlxr.compiler.errors import PlanError
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.attention import RopeWriteAttention
from mlxr.compiler.ir.ops.mamba2 import ConvSsd
from mlxr.compiler.ir.ops.mixer_decode import MixerDecode, parts_of
from mlxr.compiler.schedule.kernel import Port, round_up
from mlxr.compiler.schedule.pending_launch import PendingLaunch
from mlxr.compiler.targets.metal.kernel_parts.kernel import PART_ARRAYS, THREADGROUP_BYTES, MetalKernel
from mlxr.compiler.targets.metal.kernels.attend import AttendKernel
from mlxr.compiler.targets.metal.kernels.decode_attention import add_attention
from mlxr.compiler.targets.metal.kernels.ssd import SsdKernel, lower_ssd
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers

_SHARED = ("layer", "token", "token_out")
"""Ports that both have, with the same buffers."""


@dataclass(frozen=True)
class MixerDecodeKernel(MetalKernel):
    """The first threadgroups of a sequence attend, the others scan.

    Attributes:
        attend: the kernel that attends.
        scan: the kernel that scans, with as many threads in a threadgroup.
    """

    template = "mixer_decode.metal.jinja"
    attend: AttendKernel
    scan: SsdKernel

    @property
    def inlined(self) -> tuple[MetalKernel, ...]:
        """Both."""
        return self.attend, self.scan

    @property
    def inputs(self) -> tuple[Port, ...]:
        """What both read."""
        return (*self.attend.inputs, *((f"scan_{name}", dtype) for name, dtype in self.scan_ports))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The results of the heads that attend, those of the heads that scan, and the token."""
        *results, token = self.attend.outputs
        return (*results, *((f"scan_{name}", dtype) for name, dtype in self.scan_results), token)

    @property
    def scan_ports(self) -> tuple[Port, ...]:
        """The scan's own inputs."""
        return tuple(port for port in self.scan.inputs if port[0] not in _SHARED)

    @property
    def scan_results(self) -> tuple[Port, ...]:
        """The scan's own outputs."""
        return tuple(port for port in self.scan.outputs if port[0] not in _SHARED)

    @property
    def threads(self) -> int:
        """Threads of a threadgroup of either kind."""
        return self.attend.threads

    @property
    def head_groups(self) -> int:
        """Threadgroups that attend to the same keys."""
        return self.attend.num_kv_heads * self.attend.groups

    @property
    def attending(self) -> int:
        """Threadgroups of a sequence that attend."""
        return self.head_groups * max(1, self.attend.max_partitions)

    @property
    def threadgroup_bytes(self) -> int:
        """The most that one of them needs, whose arrays begin at multiples of 16 bytes."""
        return round_up(max(part.threadgroup_bytes for part in self.inlined), 16) + 16 * PART_ARRAYS


@lowers(MixerDecode)
def lower_mixers(lowering: MetalLowering, op: Op, _: MixerDecode) -> None:
    """Adds a launch for each kernel that attends, and those that merge partitions."""
    attention, scan = parts_of(op)
    begin = len(lowering.pending)
    add_attention(lowering, attention, attention.attrs_as(RopeWriteAttention), together=False)
    lower_ssd(lowering, scan, scan.attrs_as(ConvSsd))
    *attends, scans = lowering.pending[begin:]
    lowering.pending[begin:] = [_beside(launch, scans) for launch in attends]


def _beside(attend: PendingLaunch, scans: PendingLaunch) -> PendingLaunch:
    """A launch with the scan beside it, if it attends."""
    if not isinstance(attend.body, AttendKernel):
        return attend
    assert isinstance(scans.body, SsdKernel), "the rule of the scan makes its launch"
    kernel = _kernel(attend.body, scans.body)
    bound = {f"scan_{name}": buffer for (name, _), buffer in zip(scans.body.inputs, scans.inputs, strict=True)}
    bound |= {f"scan_{name}": buffer for (name, _), buffer in zip(scans.body.outputs, scans.outputs, strict=True)}
    bound |= {name: buffer for (name, _), buffer in zip(attend.body.inputs, attend.inputs, strict=True)}
    bound |= {name: buffer for (name, _), buffer in zip(attend.body.outputs, attend.outputs, strict=True)}
    groups = kernel.attending + kernel.scan.threadgroups
    return replace(
        attend,
        body=kernel,
        inputs=tuple(bound[name] for name, _ in kernel.inputs),
        outputs=tuple(bound[name] for name, _ in kernel.outputs),
        threadgroups=(Extent(times=groups), attend.threadgroups[1], Extent()),
    )


def _kernel(attend: AttendKernel, scan: SsdKernel) -> MixerDecodeKernel:
    """The kernel of both, with as many simdgroups in a threadgroup as its memory has room for.

    Raises:
        PlanError: one simdgroup is too many already.
    """
    kernel = MixerDecodeKernel(f"{attend.label}_scan", attend, replace(scan, beside=attend.threads))
    if kernel.threadgroup_bytes <= THREADGROUP_BYTES:
        return kernel
    if attend.simdgroups == 1:
        raise PlanError(f"no {kernel.label} with heads of {attend.head_dim} fits {THREADGROUP_BYTES} bytes")
    return _kernel(replace(attend, simdgroups=max(1, attend.simdgroups - 2)), scan)
