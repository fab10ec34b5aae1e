/* Products of a few rows with bfloat16 values as they lie in their pages: nothing is staged.
 *
 * Worth it while there are too few rows to pay for storing and loading pairs. The products and their
 * order are those of the staged ones in attention.c.
 */
#ifndef RK_DIRECT_H
#define RK_DIRECT_H

#include "stage.h"

#define DIRECT_ROWS 4 /* at most */

#if RK_DPBF16
INLINE vf pairs_of(vf sum, const void *words, int64_t at, __m512i b) {
    int32_t two;
    memcpy(&two, (const char *)words + 4 * at, 4);
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(two), (__m512bh)b);
}

/* Add the STEP values at s->row_of, weighted, to `rows` rows of out; dim is a multiple of 64. */
INLINE void value_directly(const int rows, const space *s, int64_t dim, int64_t key) {
    const __m512i low_pairs = first_pairs(), high_pairs = second_pairs();
    for (int64_t d = 0; d < dim; d += 64) {
        vf sum[4 * DIRECT_ROWS];
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

INLINE int takes_directly(const call *c, int64_t rows) {
    return c->pairs && rows <= DIRECT_ROWS && c->dim % 64 == 0;
}

static void values_directly(const space *s, int64_t rows, int64_t dim, int64_t key) {
    switch (rows) {
    case 1: value_directly(1, s, dim, key); break;
    case 2: value_directly(2, s, dim, key); break;
    case 3: value_directly(3, s, dim, key); break;
    default: value_directly(4, s, dim, key);
    }
}
#else
INLINE int takes_directly(const call *c, int64_t rows) {
    (void)c, (void)rows;
    return 0;
}
static void values_directly(const space *s, int64_t rows, int64_t dim, int64_t key) {
    (void)s, (void)rows, (void)dim, (void)key;
}
#endif

#endif
