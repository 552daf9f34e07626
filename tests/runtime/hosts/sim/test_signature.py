"""Signatures as MLX writes them, and those that cannot be run."""

import pytest

from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.sim.signature import Param, parse_signature

MLX = """
#include <metal_stdlib>
// [[kernel]] void commented_out(device float* x [[buffer(0)]])
template <typename T> T helper(T x) { return x; }
[[kernel]] void custom_kernel_qkv_0123(
  const device float16_t* x [[buffer(0)]],
  const constant uint32_t* dims [[buffer(1)]],
  const constant int& count [[buffer(2)]],
  device float* out [[buffer(3)]],
  device atomic<uint>* counters [[buffer(4)]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]],
  ushort lane [[thread_index_in_simdgroup]]) {
}
"""


def test_signature_as_mlx_generates_it():
    signature = parse_signature(MLX)
    assert signature.name == "custom_kernel_qkv_0123"
    assert signature.params == (
        Param("x", 0, "device", "float16_t", writable=False, reference=False),
        Param("dims", 1, "constant", "uint32_t", writable=False, reference=False),
        Param("count", 2, "constant", "int", writable=False, reference=True),
        Param("out", 3, "device", "float", writable=True, reference=False),
        Param("counters", 4, "device", "atomic<uint>", writable=True, reference=False),
    )
    assert signature.arguments[0] == "(const device float16_t*)b[0]"
    assert signature.arguments[2] == "*(const constant int*)b[2]"


def test_buffers_come_in_order_of_their_indices():
    signature = parse_signature("kernel void f(device int *b [[buffer(1)]], device const int *a [[ buffer(0) ]]) {}")
    assert [param.name for param in signature.params] == ["a", "b"]
    assert [param.writable for param in signature.params] == [False, True]


def test_one_of_several_kernels():
    text = "[[kernel]] void a() {} [[kernel]] void b() {}"
    assert parse_signature(text, "b").name == "b"
    with pytest.raises(HostError, match=r"expected one kernel in the text, found \['a', 'b'\]"):
        parse_signature(text)
    with pytest.raises(HostError, match=r"no kernel named 'c' in the text; it has \['a', 'b'\]"):
        parse_signature(text, "c")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("void f() {}", "found none"),
        ("[[kernel]] void f(device int* a [[buffer(1)]]) {}", r"without gaps, got \[1\]"),
        ("[[kernel]] void f(device int* a [[buffer(0)]], device int* b [[buffer(0)]]) {}", r"got \[0, 0\]"),
        ("[[kernel]] void f(int* a [[buffer(0)]]) {}", "buffer 0: expected `const device T"),
        ("[[kernel]] void f(uint a [[vertex_id]]) {}", r"unknown attribute \[\[vertex_id\]\]"),
        ("[[kernel]] void f(float a [[thread_index_in_simdgroup]]) {}", "got the parameter `float a"),
        ("[[kernel]] void f(device int* a [[buffer(0)]]", "no closing parenthesis"),
    ],
)
def test_signatures_that_cannot_be_run(text, message):
    with pytest.raises(HostError, match=message):
        parse_signature(text)
