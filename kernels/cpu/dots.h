/* Products of whole numbers within a group of columns: exact, so each machine takes its own way.
 *
 *   AVX-512, plain C   four columns of 16 outputs an instruction, added in 32 bits; of 16-bit inputs
 *                      the high and the low bytes by themselves
 *   AVX2               4 by 8 bits: sums of a group fit 16 bits, and are widened once for the group;
 *                      else pairs of 16 bits, for which inputs are STAGED: 4 columns as 0 2 1 3
 *
 * linear_packed.c draws how codes lie. rows, tiles, bits and group are constants where these are
 * inlined.
 */
#ifndef RK_DOTS_H
#define RK_DOTS_H

#include "packed.h"

#if RK_ISA == 256
#define STAGED(bits, x_bits) ((bits) == 8 || (x_bits) == 16)
#else
#define STAGED(bits, x_bits) ((void)(bits), 0)
#endif

#if RK_ISA != 256
/* dot[row * tiles + tile] of a group whose codes begin at w.code, and whose inputs at x, the rows'
 * `stride` bytes apart. */
INLINE void group_dots(const int rows, const int tiles, const int bits, const int group,
                       const tile *w, const int8_t *x, int64_t stride, vi *dot) {
    const int quads = bits == 4 ? group / 8 : group / 4;
    UNROLL
    for (int i = 0; i < rows * tiles; i++) dot[i] = vi_set(0);
    UNROLL
    for (int i = 0; i < quads; i++) {
        codes c[2], high[2];
        UNROLL
        for (int t = 0; t < tiles; t++) {
            c[t] = codes_load(w->code + t * w->code_bytes + 64 * i);
            if (bits == 4) high[t] = codes_high(c[t]), c[t] = codes_low(c[t]);
        }
        UNROLL
        for (int r = 0; r < rows; r++) {
            UNROLL
            for (int t = 0; t < tiles; t++)
                dot[r * tiles + t] = codes_dot(dot[r * tiles + t], c[t], x + r * stride + 4 * i);
        }
        if (bits == 8) continue;
        UNROLL
        for (int r = 0; r < rows; r++) {
            UNROLL
            for (int t = 0; t < tiles; t++)
                dot[r * tiles + t] =
                    codes_dot(dot[r * tiles + t], high[t], x + r * stride + group / 2 + 4 * i);
        }
    }
}

/* The same of 16-bit inputs: 4 high bytes, then 4 low ones. */
INLINE void group_dots_16(const int rows, const int tiles, const int bits, const int group,
                          const tile *w, const int8_t *x, int64_t stride, vi *dot) {
    const int quads = bits == 4 ? group / 8 : group / 4;
    vi high[8], low[8];
    UNROLL
    for (int i = 0; i < rows * tiles; i++) high[i] = low[i] = vi_set(0);
    UNROLL
    for (int i = 0; i < quads; i++) {
        codes c[2], upper[2];
        UNROLL
        for (int t = 0; t < tiles; t++) {
            c[t] = codes_load(w->code + t * w->code_bytes + 64 * i);
            if (bits == 4) upper[t] = codes_high(c[t]), c[t] = codes_low(c[t]);
        }
        UNROLL
        for (int r = 0; r < rows; r++) {
            const int8_t *at = x + r * stride + 8 * i;
            UNROLL
            for (int t = 0; t < tiles; t++) {
                int n = r * tiles + t;
                high[n] = codes_dot(high[n], c[t], at);
                low[n] = codes_dot(low[n], c[t], at + 4);
                if (bits == 8) continue;
                high[n] = codes_dot(high[n], upper[t], at + group);
                low[n] = codes_dot(low[n], upper[t], at + group + 4);
            }
        }
    }
    UNROLL
    for (int i = 0; i < rows * tiles; i++) dot[i] = vi_joined(high[i], low[i]);
}

#else
INLINE __m256i four_of(const int8_t *x) {
    int32_t four;
    memcpy(&four, x, 4);
    return _mm256_set1_epi32(four);
}

/* Added now: compilers gather whole sums as trees, whose products they then have no registers for. */
#define ADD(bits, sum, term) \
    do { \
        sum = _mm256_add_epi##bits(sum, term); \
        __asm__("" : "+x"(sum)); \
    } while (0)

/* 4 by 8 bits: a pair is within 2 * 15 * 128, and a group's 8 pairs within 30720. */
INLINE void dots_in_16(const int rows, const int group, const uint8_t *code, const int8_t *x,
                       int64_t stride, vi *dot) {
    const __m256i ones = _mm256_set1_epi16(1);
    vi sum[8];
    UNROLL
    for (int r = 0; r < rows; r++) sum[r] = vi_set(0);
    UNROLL
    for (int i = 0; i < group / 8; i++) {
        codes both = codes_load(code + 64 * i);
        UNROLL
        for (int side = 0; side < 2; side++) {
            codes c = side ? codes_high(both) : codes_low(both);
            UNROLL
            for (int r = 0; r < rows; r++) {
                __m256i four = four_of(x + r * stride + side * group / 2 + 4 * i);
                ADD(16, sum[r].a, _mm256_maddubs_epi16(c.a, four));
                ADD(16, sum[r].b, _mm256_maddubs_epi16(c.b, four));
            }
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        dot[r].a = _mm256_madd_epi16(sum[r].a, ones);
        dot[r].b = _mm256_madd_epi16(sum[r].b, ones);
    }
}

/* Pairs of STAGED inputs. */
INLINE void dots_of_pairs(const int rows, const int bits, const int group, const uint8_t *code,
                          const int8_t *x, int64_t stride, vi *dot) {
    const int sides = bits == 4 ? 2 : 1, quads = group / 4 / sides;
    const __m256i mask = _mm256_set1_epi16(bits == 4 ? 15 : 255);
    UNROLL
    for (int r = 0; r < rows; r++) dot[r] = vi_set(0);
    UNROLL
    for (int i = 0; i < quads; i++) {
        codes c = codes_load(code + 64 * i);
        UNROLL
        for (int side = 0; side < sides; side++) {
            __m256i even_a = _mm256_and_si256(_mm256_srli_epi16(c.a, 4 * side), mask);
            __m256i even_b = _mm256_and_si256(_mm256_srli_epi16(c.b, 4 * side), mask);
            __m256i odd_a = _mm256_srli_epi16(c.a, 8 + 4 * side);
            __m256i odd_b = _mm256_srli_epi16(c.b, 8 + 4 * side);
            if (bits == 4 && !side)
                odd_a = _mm256_and_si256(odd_a, mask), odd_b = _mm256_and_si256(odd_b, mask);
            UNROLL
            for (int r = 0; r < rows; r++) {
                const int8_t *at = x + r * stride + side * group + 8 * i;
                __m256i even = four_of(at), odd = four_of(at + 4);
                ADD(32, dot[r].a, _mm256_madd_epi16(even_a, even));
                ADD(32, dot[r].b, _mm256_madd_epi16(even_b, even));
                ADD(32, dot[r].a, _mm256_madd_epi16(odd_a, odd));
                ADD(32, dot[r].b, _mm256_madd_epi16(odd_b, odd));
            }
        }
    }
}

INLINE void group_dots(const int rows, const int tiles, const int bits, const int group,
                       const tile *w, const int8_t *x, int64_t stride, vi *dot) {
    (void)tiles; /* one */
    if (STAGED(bits, 8)) dots_of_pairs(rows, bits, group, w->code, x, stride, dot);
    else dots_in_16(rows, group, w->code, x, stride, dot);
}

INLINE void group_dots_16(const int rows, const int tiles, const int bits, const int group,
                          const tile *w, const int8_t *x, int64_t stride, vi *dot) {
    (void)tiles;
    dots_of_pairs(rows, bits, group, w->code, x, stride, dot);
}

/* Codes of inputs, in the form in which they are stored, STAGED. `columns` is a multiple of 16. */
INLINE void stage_codes(const int8_t *x, const int x_bits, int64_t columns, int8_t *to) {
    const __m256i highs = _mm256_setr_epi8(
        -1, 0, -1, 2, -1, 1, -1, 3, -1, 8, -1, 10, -1, 9, -1, 11,
        -1, 0, -1, 2, -1, 1, -1, 3, -1, 8, -1, 10, -1, 9, -1, 11);
    const __m256i lows = _mm256_setr_epi8(
        -1, 4, -1, 6, -1, 5, -1, 7, -1, 12, -1, 14, -1, 13, -1, 15,
        -1, 4, -1, 6, -1, 5, -1, 7, -1, 12, -1, 14, -1, 13, -1, 15);
    for (int64_t i = 0; i < columns; i += 16) {
        __m256i all;
        if (x_bits == 8) {
            all = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(x + i)));
            all = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(all, 0xd8), 0xd8);
        } else {
            __m256i both = _mm256_loadu_si256((const __m256i *)(x + 2 * i));
            __m256i low = _mm256_srai_epi16(_mm256_shuffle_epi8(both, lows), 8);
            all = _mm256_add_epi16(_mm256_shuffle_epi8(both, highs), low);
        }
        _mm256_storeu_si256((__m256i *)(to + 2 * i), all);
    }
}
#endif

#define STAGED_ROWS 64 /* at a time: they stay in a core's cache */

typedef void products(const int64_t *arg, rk_thread *t);

/* Run `f` on rows whose codes are STAGED; arguments as in linear_packed.c. */
INLINE void in_stages(const int64_t *arg, rk_thread *t, const int x_bits, products *f) {
#if RK_ISA == 256
    int64_t rows = INT(9), columns = INT(10), groups = columns / INT(11), mine[RK_ARGS];
    int64_t most = rows < STAGED_ROWS ? rows : STAGED_ROWS;
    int8_t *staged = rk_scratch(t, (size_t)(most * columns * 2));
    memcpy(mine, arg, sizeof mine);
    mine[6] = (int64_t)(intptr_t)staged;
    for (int64_t row = 0; row < rows; row += most) {
        mine[9] = rows - row < most ? rows - row : most;
        stage_codes(PTR(int8_t, 6) + row * columns * (x_bits / 8), x_bits, mine[9] * columns, staged);
        mine[7] = INT(7) + row * groups * 4;
        mine[8] = INT(8) + row * groups * 4;
        mine[13] = INT(13) + row * INT(15) * (INT(14) ? 2 : 4);
        f(mine, t);
    }
#else
    (void)x_bits;
    f(arg, t);
#endif
}

#endif
