// The numbers of Q5_0 and Q5_1: native, a dword of fifth bits (bit i is column i's), then 16 bytes of the low 4 bits
// (columns i and i + 16 in byte i).
MLXR_INLINE void pack_fives(uint8_t *quants, int row, const uint8_t *native) {
    uint32_t nibbles[8], fifths[8], bits = dword_at(native, 0);
    for (int g = 0; g < 8; g++) {
        nibbles[g] = dword_at(native + 4, g % 4) >> 4 * (g / 4) & 0x0f0f0f0f;
        uint32_t four = bits >> 4 * g & 15;
        fifths[g] = (four | four << 7 | four << 14 | four << 21) & 0x01010101;  // bit c to byte c
    }
    pack_nibbles(quants, row, nibbles);
    pack_ones(quants + 256, row, fifths);
}
