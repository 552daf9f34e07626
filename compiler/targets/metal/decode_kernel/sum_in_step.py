"""The sum over ranks as one of the kernels in a step kernel.

    CollectiveCall -> KernelEntry and text, as if it were a kernel of the program

Its text is templates/hosts/peer_sum_on_cuda.cuh, which is also a kernel of its own.
"""

from importlib.resources import files

from mlxr.compiler.artifact.kernel_entry import KernelEntry, KernelPort, body_of, header_of
from mlxr.compiler.artifact.library_call import CollectiveCall
from mlxr.compiler.artifact.parallel.peer_mailboxes import mailbox_macros
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.schedule.lowered import LoweringInput

_THREADS = 128
_TYPES = {DType.F32: "float", DType.F16: "__half", DType.BF16: "__nv_bfloat16"}
_TEXT = """// ---- header
{defines}{header}// ---- kernel
void sum() {{
  const u64* const memory = (const u64*)peers;
  const u32 count = {count};
{body}}}
"""


def sum_entry(call: CollectiveCall) -> KernelEntry:
    """The entry of a sum; its inputs are the addend, the addresses of all ranks' mailboxes and the batch's dims."""
    inputs = [("x", call.dtype), ("peers", DType.U32), ("dims", DType.U32)]
    return KernelEntry(
        name=f"all_sum_{call.dtype}_{call.width}",
        label=call.label,
        file="",
        inputs=tuple(KernelPort(name=name, dtype=dtype) for name, dtype in inputs),
        outputs=(KernelPort(name="out", dtype=call.dtype),),
        threads=_THREADS,
    )


def sum_text(call: CollectiveCall, counts: range, inputs: LoweringInput) -> str:
    """The text of a sum.

    Args:
        call: what is summed.
        counts: the numbers of sequences, and so of rows; of several, the batch's dims have the number.
        inputs: the input of the lowering.
    """
    template = files("mlxr.templates").joinpath("hosts/peer_sum_on_cuda.cuh").read_text("utf-8")
    macros = {"TYPE": _TYPES[call.dtype], **mailbox_macros(inputs.sharing_index, inputs.num_sharing, _THREADS)}
    macros |= {
        "SUM_THREAD": "thread_index_in_threadgroup",
        "SUM_BLOCK": "threadgroup_position_in_grid.x",
        "SUM_BLOCKS": "BLOCKS",
        "SUM_BARRIER()": "threadgroup_barrier(mem_flags::mem_threadgroup)",
    }
    return _TEXT.format(
        defines="".join(f"#define {macro} {value}\n" for macro, value in macros.items()),
        header=header_of(template),
        count=f"{call.width * counts[0]}u" if len(counts) == 1 else f"dims[0] * {call.width}u",
        body=body_of(template),
    )
