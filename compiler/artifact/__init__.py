"""The artifact: a directory that anyone can open and read, and the only thing the runtime sees of the compiler.

    manifest.json           format, version, and the SHA-256 of every other file
    spec.yaml               the resolved spec
    graph.source.json/.txt  the op graph as built; graph.decode and graph.prefill: after the passes
    plan.json               a program for each target (launches, buffers, arena, memory), and the weights
    chip.json               the chip that launch geometry was chosen for: its figures and rules
    tuning.json             the times behind measured rules, of all candidates; written by `mlxr tune`
    kernels/NAME.metal      one complete Metal file per kernel (target metal)
    steps/NAME.cu           a whole decode step as one CUDA kernel, without the host's prelude (target metal)
    cpu/model.c             the whole model as one C file (target cpu)
    experts/                plan, graphs and sources of what the CPU computes beside a card (spec: experts_on_cpu)

The same spec gives the same bytes. An artifact is written whole or not at all; the reader refuses one that was changed
afterwards.
"""

from mlxr.compiler.artifact.adapter_bytes import LIFT_RANKS, matrix_bytes
from mlxr.compiler.artifact.artifact import Artifact
from mlxr.compiler.artifact.c_library import LATER, CLibrary, CTensor
from mlxr.compiler.artifact.chip import Chip
from mlxr.compiler.artifact.handover_layout import HandoverLayout
from mlxr.compiler.artifact.kernel_entry import KernelEntry, body_of, header_of
from mlxr.compiler.artifact.launch import BATCH_DIMS, Condition, Extent, KernelCall, Launch
from mlxr.compiler.artifact.library_call import AttentionCall, CollectiveCall, HandoverCall, LibraryCall, MatmulCall
from mlxr.compiler.artifact.manifest import TUNING, is_artifact
from mlxr.compiler.artifact.parallel.parallel_plan import Message, ParallelPlan, RankShare
from mlxr.compiler.artifact.parallel.peer_mailboxes import BLOCKS, LONGEST_BYTES, mailbox_bytes, mailbox_macros
from mlxr.compiler.artifact.parallel.rank_plan import COLLECTIVES, RankPlan, RankPosition
from mlxr.compiler.artifact.plan import Plan
from mlxr.compiler.artifact.program import PHASES, MemoryPlan, Phase, PhaseName, Program, TargetTypes
from mlxr.compiler.artifact.reader import load_artifact
from mlxr.compiler.artifact.step_kernel_entry import INCLUDE, LAYERS, PEERS, StepKernelEntry, StepsAsLaunches
from mlxr.compiler.artifact.typical_steps import decode_dims
from mlxr.compiler.artifact.weight_plan import Columns, Recipe, Rows, TensorSource, WeightPlan
from mlxr.compiler.debug import debug_level
from mlxr.compiler.formats import file_keys
from mlxr.compiler.formats.arena import ArenaGeometry, CacheGeometry
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.foreign_file import foreign_file
from mlxr.compiler.formats.stored_planes import integer_format, plane_format, plane_names
from mlxr.compiler.formats.stores import (
    ATTENDED,
    CONV_STATES,
    HIDDEN,
    KEYS_AND_VALUES,
    LATENTS,
    MOST_TAKEN_BACK,
    MOST_UNDONE,
    STATES,
    Allocation,
    LayerGroup,
    of_group,
)
from mlxr.compiler.formats.tensor_parts import FileKind, guessing_layers, part_beside, text_name
from mlxr.compiler.formats.weight_format import Affine, WeightFormat
from mlxr.compiler.formats.weight_layout import PANEL_ROWS, Segment, WeightLayout, part_places, plane_row_bytes
from mlxr.compiler.ir.graph import Op, OpGraph, Value
from mlxr.compiler.ir.ops.collectives import CollectiveKind
from mlxr.compiler.ir.ops.product import Finish, InputNorm
from mlxr.compiler.ir.tensor import ARENA_TOKEN, BatchDim, layer_buffer
from mlxr.compiler.spec.adapters import DOWN, UP, Adapters, adapted_matrices
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.text import size

__all__ = [
    "ARENA_TOKEN",
    "ATTENDED",
    "BATCH_DIMS",
    "BLOCKS",
    "COLLECTIVES",
    "CONV_STATES",
    "DOWN",
    "HIDDEN",
    "INCLUDE",
    "KEYS_AND_VALUES",
    "LATENTS",
    "LATER",
    "LAYERS",
    "LIFT_RANKS",
    "LONGEST_BYTES",
    "MOST_TAKEN_BACK",
    "MOST_UNDONE",
    "PANEL_ROWS",
    "PEERS",
    "PHASES",
    "STATES",
    "TUNING",
    "UP",
    "Adapters",
    "Affine",
    "Allocation",
    "ArenaGeometry",
    "Artifact",
    "AttentionCall",
    "BatchDim",
    "CLibrary",
    "CTensor",
    "CacheGeometry",
    "Chip",
    "CollectiveCall",
    "CollectiveKind",
    "Columns",
    "Condition",
    "DType",
    "Extent",
    "FileKind",
    "Finish",
    "HandoverCall",
    "HandoverLayout",
    "InputNorm",
    "KernelCall",
    "KernelEntry",
    "Launch",
    "LayerGroup",
    "LibraryCall",
    "MatmulCall",
    "MemoryPlan",
    "Message",
    "ModelSpec",
    "Op",
    "OpGraph",
    "ParallelPlan",
    "Phase",
    "PhaseName",
    "Plan",
    "Program",
    "RankPlan",
    "RankPosition",
    "RankShare",
    "Recipe",
    "Rows",
    "Segment",
    "StepKernelEntry",
    "StepsAsLaunches",
    "TargetTypes",
    "TensorSource",
    "Value",
    "WeightFormat",
    "WeightLayout",
    "WeightPlan",
    "adapted_matrices",
    "body_of",
    "debug_level",
    "decode_dims",
    "file_keys",
    "foreign_file",
    "guessing_layers",
    "header_of",
    "integer_format",
    "is_artifact",
    "layer_buffer",
    "load_artifact",
    "mailbox_bytes",
    "mailbox_macros",
    "matrix_bytes",
    "of_group",
    "part_beside",
    "part_places",
    "plane_format",
    "plane_names",
    "plane_row_bytes",
    "size",
    "text_name",
]
