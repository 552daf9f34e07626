// mlxr_addresses: where its 64 inputs lie in the GPU's memory, for kernels that read addresses in a table. Grid: one thread.
//
//   a00 to a3f   any arrays
//   table        [64] u64
#define MLXR_ROW(F, r) \
    F(r, 0) F(r, 1) F(r, 2) F(r, 3) F(r, 4) F(r, 5) F(r, 6) F(r, 7) F(r, 8) F(r, 9) F(r, a) F(r, b) F(r, c) F(r, d) F(r, e) F(r, f)
#define MLXR_EACH(F) MLXR_ROW(F, 0) MLXR_ROW(F, 1) MLXR_ROW(F, 2) MLXR_ROW(F, 3)
#define MLXR_ARGUMENT(r, c) const void *a##r##c,
#define MLXR_WRITE(r, c) table[0x##r##c] = (unsigned long long)a##r##c;

extern "C" __global__ void mlxr_addresses(MLXR_EACH(MLXR_ARGUMENT) unsigned long long* table) {
  MLXR_EACH(MLXR_WRITE)
}
