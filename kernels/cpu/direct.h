/* Products of a few rows with values as they lie in their pages: nothing is staged.
 *
 * Worth it while there are too few rows to pay for storing and loading. The products and their order
 * are those of the staged ones in attention.c.
 */
#ifndef RK_DIRECT_H
#define RK_DIRECT_H

#include "tile.h"

/* A register of values of a page's row, as widen_rows makes them. */
INLINE vr value_at(const char *row, int64_t d, vr scale, const int type) {
    if (type == PAGES_F16) return vr_load_f16((const f16 *)row + d);
    if (type == PAGES_BF16) return vr_load_bf16((const bf16 *)row + d);
    if (type == PAGES_I8) return vr_load_i8((const int8_t *)row + d, scale);
    return vr_load((const float *)row + d);
}

/* Add the STEP values at s->row_of, weighted, to `rows` rows of out; dim is a multiple of 64. */
INLINE void value_directly(const int rows, const int type, const space *s, int64_t dim,
                           int64_t key) {
    const int size = type == PAGES_I8 ? 1 : type == PAGES_F16 || type == PAGES_BF16 ? 2 : 4;
    const int columns = COLUMNS(rows), wide = LANE * columns;
    for (int64_t d = 0; d < dim; d += wide) {
        vr sum[16];
        float *out = s->out + d;
        for (int r = 0; r < rows; r++)
            for (int n = 0; n < columns; n++) sum[r * columns + n] = vr_load(out + r * dim + LANE * n);
        for (int j = 0; j < STEP; j++) {
            const char *row = s->row_of[j];
            float scale = 1;
            if (type == PAGES_I8) memcpy(&scale, row + dim, 4);
            if (d * size % 64 == 0)
                for (int at = 0; at < wide * size; at += 64)
                    __builtin_prefetch(s->ahead_of[j] + d * size + at);
            vr weight[MOST_ROWS], by = vr_set(scale);
            for (int r = 0; r < rows; r++) weight[r] = held(vr_set(s->scores[r * ROW + key + j]));
            UNROLL
            for (int n = 0; n < columns; n++) {
                vr v = held(value_at(row, d + LANE * n, by, type));
                UNROLL
                for (int r = 0; r < rows; r++)
                    sum[r * columns + n] = vr_fma(weight[r], v, sum[r * columns + n]);
            }
        }
        for (int r = 0; r < rows; r++)
            for (int n = 0; n < columns; n++) vr_store(out + r * dim + LANE * n, sum[r * columns + n]);
    }
}

#if RK_DPBF16
INLINE vf pairs_of(vf sum, const void *words, int64_t at, __m512i b) {
    int32_t two;
    memcpy(&two, (const char *)words + 4 * at, 4);
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(two), (__m512bh)b);
}

/* `value_directly` by pairs of bfloat16. */
INLINE void pairs_directly(const int rows, const space *s, int64_t dim, int64_t key) {
    const __m512i low_pairs = first_pairs(), high_pairs = second_pairs();
    for (int64_t d = 0; d < dim; d += 64) {
        vf sum[16];
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < 4; i++) sum[4 * r + i] = vf_load(s->out + r * dim + d + 16 * i);
        for (int j = 0; j < STEP / 2; j++) {
            const bf16 *row = (const bf16 *)s->row_of[2 * j] + d;
            const bf16 *next = (const bf16 *)s->row_of[2 * j + 1] + d;
            for (int i = 0; i < 2; i++)
                for (int at = 0; at < 128; at += 64)
                    __builtin_prefetch(s->ahead_of[2 * j + i] + 2 * d + at);
            __m512i a = _mm512_loadu_si512(row), b = _mm512_loadu_si512(next);
            __m512i c = _mm512_loadu_si512(row + 32), e = _mm512_loadu_si512(next + 32);
            __m512i v[4] = {_mm512_permutex2var_epi16(a, low_pairs, b),
                            _mm512_permutex2var_epi16(a, high_pairs, b),
                            _mm512_permutex2var_epi16(c, low_pairs, e),
                            _mm512_permutex2var_epi16(c, high_pairs, e)};
            UNROLL
            for (int r = 0; r < rows; r++) {
                UNROLL
                for (int i = 0; i < 4; i++)
                    sum[4 * r + i] = pairs_of(sum[4 * r + i], s->scores, r * ROW + key / 2 + j, v[i]);
            }
        }
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < 4; i++) vf_store(s->out + r * dim + d + 16 * i, sum[4 * r + i]);
    }
}
#else
INLINE void pairs_directly(const int rows, const space *s, int64_t dim, int64_t key) {
    (void)rows, (void)s, (void)dim, (void)key;
}
#endif

INLINE int takes_directly(const call *c, int64_t rows) {
    return rows_of_tile(rows) == rows && c->dim % 64 == 0;
}

INLINE void some_directly(const int rows, const call *c, const space *s, int64_t key) {
    if (c->pairs) pairs_directly(rows, s, c->dim, key);
    else if (c->type == PAGES_F32) value_directly(rows, PAGES_F32, s, c->dim, key);
    else if (c->type == PAGES_F16) value_directly(rows, PAGES_F16, s, c->dim, key);
    else if (c->type == PAGES_I8) value_directly(rows, PAGES_I8, s, c->dim, key);
    else value_directly(rows, PAGES_BF16, s, c->dim, key);
}

static void values_directly(const call *c, const space *s, int64_t rows, int64_t key) {
    switch (rows) {
    case 1: some_directly(1, c, s, key); break;
    case 2: some_directly(2, c, s, key); break;
    case 3: some_directly(3, c, s, key); break;
    case 4: some_directly(4, c, s, key); break;
    default: some_directly(MOST_ROWS, c, s, key);
    }
}

#endif
