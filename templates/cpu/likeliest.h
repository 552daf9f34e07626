// The likeliest token of a row of logits. Of the block of columns that has the greatest number, it is searched for.
// The column of the greatest of `width` numbers, the first of equal ones; of numbers that are none, some column.
static inline int32_t mlxr_likeliest(const float *row, int32_t width) {
    enum { BLOCK = 1024 };
    float most = -__builtin_inff();
    int32_t found = 0;
    for (int32_t first = 0; first < width; first += BLOCK) {
        const int32_t end = width - first < BLOCK ? width : first + BLOCK;
        f32v lanes = f32_set1(-__builtin_inff());
        int32_t i = first;
        for (; i + MLXR_LANES <= end; i += MLXR_LANES) lanes = f32_max(lanes, f32_load(row + i));
        float greatest = f32_greatest(lanes);
        for (; i < end; ++i) greatest = row[i] > greatest ? row[i] : greatest;
        if (greatest > most) {
            most = greatest;
            found = first;
        }
    }
    while (found < width - 1 && row[found] != most) ++found;
    return found;
}
