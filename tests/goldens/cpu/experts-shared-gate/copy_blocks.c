// Copy-on-write: copies whole blocks of the arena, every layer, before the step that writes into the copies.
//   pairs  [count, 2] i32: source and target block, copied in order
//   K, V   [40, 2, 4, 2, 40] f32
static void copy_blocks_9b68316f(mlxr_model *m, const int32_t *pairs, int count) {
    uint8_t *arenas[2] = {m->k_arena, m->v_arena};
    for (int i = 0; i < 2 * count; i++) {
        const uint8_t *source = arenas[i % 2] + (size_t)pairs[i / 2 * 2] * 2560u;
        uint8_t *target = arenas[i % 2] + (size_t)pairs[i / 2 * 2 + 1] * 2560u;
        memcpy(target, source, 2560u);
    }
}
