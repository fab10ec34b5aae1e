/* GGUF blocks taken apart: to the interleaved form that linear_packed.c reads, whose head draws it,
 * and to floats. */
#include <math.h>
#include <string.h>

#include "ops.h"
#include "vec.h"

/* One row's group taken apart: codes, scale and low. */
typedef struct {
    uint8_t code[32];
    float scale, low;
} group;

static f16 half_at(const uint8_t *p) {
    f16 h;
    memcpy(&h, p, 2);
    return h;
}

/* Blocks of 32 with 4 bits: low halves first. */
static void nibbles(const uint8_t *p, uint8_t *code) {
    for (int i = 0; i < 16; i++) code[i] = p[i] & 15, code[i + 16] = p[i] >> 4;
}

static void fifth_bits(const uint8_t *p, uint8_t *code) {
    for (int i = 0; i < 32; i++) code[i] |= (uint8_t)((p[i / 8] >> i % 8 & 1) << 4);
}

/* 6-bit scale and low of one of the 8 groups of a q4_k or q5_k block. */
static void scale_and_low(const uint8_t *p, int i, int *scale, int *low) {
    if (i < 4) {
        *scale = p[i] & 63;
        *low = p[i + 4] & 63;
    } else {
        *scale = (p[i + 4] & 15) | (p[i - 4] >> 6) << 4;
        *low = p[i + 4] >> 4 | (p[i] >> 6) << 4;
    }
}

static void k_group(const uint8_t *block, int i, int five, group *out) {
    const uint8_t *low_bits = block + 16 + (five ? 32 : 0) + i / 2 * 32;
    int scale, low;
    scale_and_low(block + 4, i, &scale, &low);
    for (int j = 0; j < 32; j++) {
        out->code[j] = i % 2 ? low_bits[j] >> 4 : low_bits[j] & 15;
        if (five) out->code[j] |= (uint8_t)((block[16 + j] >> i & 1) << 4);
    }
    out->scale = f16_to_float(half_at(block)) * (float)scale;
    out->low = -f16_to_float(half_at(block + 2)) * (float)low;
}

/* The 16 groups of 16 of a q6_k block: 128 low bytes, 64 of high bits, 16 scales, one factor. */
static void q6_group(const uint8_t *block, int i, group *out) {
    int side = i / 8, first = i % 8 * 16;
    for (int j = 0; j < 16; j++) {
        int at = first + j, lane = at % 32, quarter = at / 32;
        uint8_t low = block[side * 64 + lane + (quarter % 2) * 32];
        uint8_t high = block[128 + side * 32 + lane];
        low = quarter < 2 ? low & 15 : low >> 4;
        out->code[j] = (uint8_t)(low | (high >> 2 * quarter & 3) << 4);
    }
    out->scale = f16_to_float(half_at(block + 208)) * (float)(int8_t)block[192 + i];
}

enum { Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K };
static const struct {
    int bits, group, has_low, half, weights, bytes, zero, reach; /* of code - zero */
} forms[] = {
    [Q4_0] = {4, 32, 0, 1, 32, 18, 8, 8},      [Q4_1] = {4, 32, 1, 1, 32, 20, 0, 15},
    [Q5_0] = {8, 32, 0, 1, 32, 22, 16, 16},    [Q5_1] = {8, 32, 1, 1, 32, 24, 0, 31},
    [Q8_0] = {8, 32, 0, 1, 32, 34, 128, 128},  [Q4_K] = {4, 32, 1, 0, 256, 144, 0, 15},
    [Q5_K] = {8, 32, 1, 0, 256, 176, 0, 31},   [Q6_K] = {8, 16, 0, 0, 256, 210, 32, 32},
};

/* Scales stay the halves that the file holds, or become floats. */
static void take_apart(int form, const uint8_t *block, int i, group *out, f16 *halves) {
    halves[0] = half_at(block);
    halves[1] = half_at(block + 2);
    switch (form) {
    case Q4_0: nibbles(block + 2, out->code); break;
    case Q4_1: nibbles(block + 4, out->code); break;
    case Q5_0: nibbles(block + 6, out->code), fifth_bits(block + 2, out->code); break;
    case Q5_1: nibbles(block + 8, out->code), fifth_bits(block + 4, out->code); break;
    case Q8_0:
        for (int j = 0; j < 32; j++) out->code[j] = block[2 + j] ^ 0x80;
        break;
    case Q4_K: k_group(block, i, 0, out); break;
    case Q5_K: k_group(block, i, 1, out); break;
    default: q6_group(block, i, out);
    }
}

static void put_codes(int bits, int size, int row, const uint8_t *code, uint8_t *to) {
    for (int k = 0; k < size; k++) {
        int at = bits == 8 ? k : k % (size / 2);
        uint8_t *byte = to + at / 4 * 64 + row * 4 + at % 4;
        *byte |= bits == 4 && k >= size / 2 ? (uint8_t)(code[k] << 4) : code[k];
    }
}

/* rows x columns weights in blocks at `data`, the matrix's rows from `first` on -> codes and scales
 * of the whole matrix, both zeroed, rows padded to 16. */
void rk_repack(const uint8_t *data, int64_t form, int64_t first, int64_t rows, int64_t columns,
               uint8_t *codes_out, char *scales) {
    int bits = forms[form].bits, size = forms[form].group, each = forms[form].half ? 2 : 4;
    int lows = forms[form].has_low, per_block = forms[form].weights / size;
    int64_t groups = columns / size, row_bytes = columns / forms[form].weights * forms[form].bytes;
    for (int64_t row = first; row < first + rows; row++)
        for (int64_t g = 0; g < groups; g++) {
            const uint8_t *block = data + (row - first) * row_bytes + g / per_block * forms[form].bytes;
            int64_t index = row / 16 * groups + g;
            char *scale = scales + index * 16 * each * (1 + lows) + row % 16 * each;
            group parts = {0};
            f16 halves[2];
            take_apart((int)form, block, (int)(g % per_block), &parts, halves);
            put_codes(bits, size, (int)(row % 16), parts.code, codes_out + index * size * 2 * bits);
            memcpy(scale, each == 2 ? (void *)&halves[0] : (void *)&parts.scale, (size_t)each);
            if (lows)
                memcpy(scale + 16 * each, each == 2 ? (void *)&halves[1] : (void *)&parts.low,
                       (size_t)each);
        }
}

/* A row's g-th group with its scale and low as floats. */
static void group_of(const uint8_t *blocks, int form, int64_t g, group *out) {
    int per_block = forms[form].weights / forms[form].group;
    f16 halves[2];
    take_apart(form, blocks + g / per_block * forms[form].bytes, (int)(g % per_block), out, halves);
    if (!forms[form].half) return;
    out->scale = f16_to_float(halves[0]);
    out->low = f16_to_float(halves[1]);
}

/* No weight of a row is greater. Infinite where one is no number. */
static float bound_of(const uint8_t *blocks, int form, int64_t groups) {
    float most = 0;
    for (int64_t g = 0; g < groups; g++) {
        group parts = {0};
        group_of(blocks, form, g, &parts);
        float low = forms[form].has_low ? fabsf(parts.low) : 0;
        float here = fabsf(parts.scale) * (float)forms[form].reach + low;
        if (!(here <= most)) most = here;
        if (!(most < INFINITY)) return INFINITY;
    }
    return most;
}

/* A row to the units of linear_tiles.c; its sums' factor, which is no number if a scale is none. */
static float tile_row(const uint8_t *blocks, int form, int64_t row, int64_t columns, uint8_t *codes,
                      f16 *scales) {
    int bits = forms[form].bits, size = forms[form].group, lows = forms[form].has_low;
    int of_unit = lows || size == 16 ? 32 : 16, words = 16 / bits, up, first = (int)row % 16;
    float bound = bound_of(blocks, form, columns / size);
    if (bound == INFINITY) return NAN;
    frexpf(bound, &up);
    up = 15 - up;
    for (int64_t g = 0; g < columns / size; g++) {
        int64_t column = g * size, unit = (row / 32 * (columns / 32) + column / 32) * 2 + row % 32 / 16;
        uint8_t *code = codes + unit * 64 * bits + first / words * 64 + column % 32 * 2;
        f16 *scale = scales + unit * of_unit + first;
        group parts = {0};
        group_of(blocks, form, g, &parts);
        for (int k = 0; k < size; k++, code += 2) {
            uint32_t word = parts.code[k]; /* in the end as wide as two */
            if (bits == 8) word = (uint8_t)(word - (uint32_t)forms[form].zero);
            word <<= first % words * bits + (bits == 4);
            code[0] |= (uint8_t)(word | word >> 16);
            code[1] |= (uint8_t)(word >> 8);
        }
        scale[column % 32] = f16_of(ldexpf(parts.scale, bits == 8 ? up - 8 : up));
        if (lows) scale[16] = f16_of(ldexpf(parts.low, up));
    }
    return ldexpf(1, 112 - 32 - up);
}

/* The same to the units of linear_tiles.c, which draws them, and their outputs' factors; rows padded
 * to 32. */
void rk_repack_tiles(const uint8_t *data, int64_t form, int64_t first, int64_t rows, int64_t columns,
                     uint8_t *codes, char *scales, float *factors) {
    int64_t row_bytes = columns / forms[form].weights * forms[form].bytes;
    for (int64_t row = first; row < first + rows; row++, data += row_bytes)
        factors[row] = tile_row(data, (int)form, row, columns, codes, (f16 *)scales);
}

/* Rows of a packed matrix as floats: the numbers that gguf's own dequantisation gives.
 * 0 blocks, 1 form, 2 columns, 3 ids int64: which rows, 4 out, 5 rows, 6 half of out, 7 its stride
 */
void rk_embed(const int64_t *arg, rk_thread *t) {
    int64_t form = INT(1), columns = INT(2), first, last;
    int size = forms[form].group, per_block = forms[form].weights / size;
    int64_t row_bytes = columns / forms[form].weights * forms[form].bytes;
    rk_share(t, INT(5), &first, &last);
    for (int64_t row = first; row < last; row++)
        for (int64_t g = 0; g < columns / size; g++) {
            const uint8_t *block = PTR(uint8_t, 0) + PTR(int64_t, 3)[row] * row_bytes;
            group parts = {0};
            f16 halves[2];
            block += g / per_block * forms[form].bytes;
            take_apart((int)form, block, (int)(g % per_block), &parts, halves);
            if (forms[form].half) {
                parts.scale = f16_to_float(halves[0]);
                parts.low = f16_to_float(halves[1]);
            }
            for (int i = 0; i < size; i++) {
                float x = parts.scale * (float)(parts.code[i] - forms[form].zero);
                if (forms[form].has_low) x += parts.low;
                put_any(PTR(void, 4), row * INT(7) + g * size + i, x, (int)INT(6));
            }
        }
}
