// Which adapter each token of a step uses.

// A batch of a program with adapters: the runtime gives it where others have an mlxr_batch.
typedef struct {
    mlxr_batch batch;
    const int32_t *ids;   // [tokens]; -1: none
    const float *scales;  // [tokens]
} mlxr_adapted_batch;

MLXR_INLINE const mlxr_adapted_batch *mlxr_adapted(const mlxr_batch *b) { return (const mlxr_adapted_batch *)b; }
