"""Launch geometry: the numbers that a tuner may change without changing what is computed."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Geometry:
    """Sizes of threadgroups and tiles.

    Attributes:
        matvec_outputs: weight rows of a simdgroup in one-row projections (gated ones keep this many of each half).
        matvec_simdgroups: simdgroups of a threadgroup there.
        matmul_outputs, matmul_simdgroups: the same for several rows.
        matmul_tile: input rows that share one read of the weight; tile x outputs is at most 32, one lane each.
        attend_simdgroups: simdgroups that share the context of one KV head in decode.
        partition: positions of one split-KV partition; contexts up to this long are not split.
        prefill_rows: (token, query head) rows of a prefill attention threadgroup, if threadgroup memory allows.
        prefill_keys: keys of one of its tiles, likewise.
        prefill_rows_per_simdgroup: rows of one simdgroup there.
        mlx_min_rows: rows from which the metal host gives a projection to MLX's matmul.
    """

    matvec_outputs: int = 4
    matvec_simdgroups: int = 2
    matmul_outputs: int = 4
    matmul_simdgroups: int = 2
    matmul_tile: int = 8
    attend_simdgroups: int = 8
    partition: int = 1024
    prefill_rows: int = 32
    prefill_keys: int = 32
    prefill_rows_per_simdgroup: int = 4
    mlx_min_rows: int = 32
