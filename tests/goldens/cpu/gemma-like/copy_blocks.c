// Copy-on-write: copies whole blocks of a group, in every store and layer, before the step that writes into the copies.
//   pairs   [count, 2] i32: source and target block, copied in order
//   stores[0]  [blocks, 4, 4, 1, 32] f32, of group 0
//   stores[1]  [blocks, 4, 4, 1, 32] f32, of group 0
static void copy_blocks_9b5aa340(mlxr_model *m, int group, const int32_t *pairs, int count) {
    static const struct {
        int store, group, layers;
        size_t block_stride, layer_stride, bytes;
    } parts[] = {
        {0, 0, 1, 2048u, 0u, 2048u},
        {1, 0, 1, 2048u, 0u, 2048u},
    };
    for (int i = 0; i < count; i++)
        for (size_t p = 0; p < sizeof parts / sizeof *parts; p++)
            for (int layer = 0; parts[p].group == group && layer < parts[p].layers; layer++) {
                uint8_t *rows = m->stores[parts[p].store] + (size_t)layer * parts[p].layer_stride;
                memcpy(rows + (size_t)pairs[2 * i + 1] * parts[p].block_stride, rows + (size_t)pairs[2 * i] * parts[p].block_stride, parts[p].bytes);
            }
}
