/* Inputs of products with packed weights, rounded to 8 or 16 bits with one scale a group of columns.
 *
 *   8 bits    a byte a column
 *   16 bits   256 * high + low: of each 4 columns 4 high bytes, then 4 low ones
 *
 * Beside the codes go each group's scale and the sum of its codes. A group that is not finite gets
 * NaN as its scale. Groups are rounded 16 at a time, for what needs one number of each: a largest or
 * a sum of 16 vectors takes little more than one vector's.
 */
#include "ops.h"
#include "vec.h"

#define LARGEST 32512 /* 127 * 256: both halves of a code fit int8 */

typedef struct {
    const void *x;
    int half;
    int64_t from[16]; /* the groups' first elements */
} groups16;

INLINE vf number(const groups16 *g, int i, int64_t column) {
    return load_any(g->x, g->from[i] + column, g->half);
}

/* Each group's scale, and what its numbers are multiplied by, 0 where that is no number. */
INLINE void find_scales(const groups16 *g, int count, int64_t group, float largest_code,
                        float *scale, float *inverse) {
    vf largest[16], poison[16];
    for (int i = 0; i < 16; i++) largest[i] = poison[i] = vf_set(0);
    for (int i = 0; i < count; i++)
        for (int64_t column = 0; column < group; column += 16) {
            vf v = number(g, i, column);
            largest[i] = vf_max(largest[i], vf_abs(v));
            poison[i] = vf_fma(v, vf_set(0), poison[i]); /* NaN if any is NaN or infinite */
        }
    vf scales = vf_div(vf_largest_of(largest), vf_set(largest_code));
    float bad[16];
    vf_store(bad, vf_sum_of(poison));
    vf_store(scale, scales);
    vf_store(inverse, vf_div(vf_set(1), scales));
    for (int i = 0; i < 16; i++) {
        if (!(scale[i] > 1e-30f && scale[i] <= 3e38f)) scale[i] = inverse[i] = 0;
        scale[i] += bad[i];
    }
}

INLINE vf code_of(vf v, float inverse, float largest_code) { /* a bound where it is NaN */
    v = vf_round(vf_mul(v, vf_set(inverse)));
    return vf_min(vf_max(v, vf_set(-largest_code)), vf_set(largest_code));
}

/* 16 codes of 16 bits to 32 bytes. */
INLINE void put_16_bits(int8_t *to, vf v) {
    int8_t highs[16], lows[16];
    /* The half moves 128 up, where the low byte would not fit. */
    vf high = vf_round(vf_mul(vf_add(v, vf_set(0.5f)), vf_set(1.0f / 256)));
    vf_store_i8(highs, high);
    vf_store_i8(lows, vf_fma(high, vf_set(-256), v));
#if RK_ISA
    __m128i h = _mm_loadu_si128((__m128i *)highs), l = _mm_loadu_si128((__m128i *)lows);
    _mm_storeu_si128((__m128i *)to, _mm_unpacklo_epi32(h, l));
    _mm_storeu_si128((__m128i *)to + 1, _mm_unpackhi_epi32(h, l));
#else
    for (int j = 0; j < 16; j += 4) {
        memcpy(to + 2 * j, highs + j, 4);
        memcpy(to + 2 * j + 4, lows + j, 4);
    }
#endif
}

/* `count` groups, up to 16; codes, scales and sums are theirs, one after the other. */
INLINE void round_groups(const groups16 *g, int count, int64_t group, const int bits,
                         int8_t *codes, float *scales, float *sums) {
    const float most = bits == 8 ? 127 : LARGEST;
    float scale[16], inverse[16], total[16];
    vf sum[16];
    find_scales(g, count, group, most, scale, inverse);
    for (int i = 0; i < 16; i++) sum[i] = vf_set(0);
    for (int i = 0; i < count; i++)
        for (int64_t column = 0; column < group; column += 16) {
            vf v = code_of(number(g, i, column), inverse[i], most);
            int8_t *to = codes + (i * group + column) * (bits / 8);
            if (bits == 8) vf_store_i8(to, v);
            else put_16_bits(to, v);
            sum[i] = vf_add(sum[i], v); /* of whole numbers: exact */
        }
    vf_store(total, vf_sum_of(sum));
    memcpy(scales, scale, (size_t)count * 4);
    memcpy(sums, total, (size_t)count * 4);
}

/* The groups of this piece. Arguments as below. */
INLINE void all_groups(const int64_t *arg, rk_thread *t, const int bits) {
    int64_t group = INT(5), groups = INT(4) / group, first, last;
    rk_share(t, INT(3) * groups, &first, &last);
    groups16 g = {.x = PTR(void, 0), .half = (int)INT(1)};
    for (int64_t n = first; n < last; n += 16) {
        int count = last - n < 16 ? (int)(last - n) : 16;
        int64_t row = n / groups, which = n % groups;
        for (int i = 0; i < count; i++) {
            g.from[i] = row * INT(2) + which * group;
            if (++which == groups) row++, which = 0;
        }
        round_groups(&g, count, group, bits, PTR(int8_t, 6) + n * group * (bits / 8),
                     PTR(float, 7) + n, PTR(float, 8) + n);
    }
}

/* To 8 bits.  0 x, 1 half, 2 row stride, 3 rows, 4 columns, 5 group,
 * 6 codes int8 [rows, columns], 7 scales float32 [rows, groups], 8 sums of codes float32 [rows, groups]
 */
void rk_quantize(const int64_t *arg, rk_thread *t) { all_groups(arg, t, 8); }

/* To 16 bits or float32.  0 x, 1 half, 2 row stride, 3 rows, 4 columns, 5 group,
 * 6 codes: int8 [rows, 2 * columns], or float32 [rows, columns]; with 16 bits 7 scales float32
 * [rows, groups], 8 sums of codes float32 [rows, groups]; 9 bits, 16 or 32
 */
void rk_quantize_wide(const int64_t *arg, rk_thread *t) {
    int64_t columns = INT(4), group = INT(5), groups = columns / group, first, last;
    if (INT(9) == 16) {
        all_groups(arg, t, 16);
        return;
    }
    rk_share(t, INT(3) * groups, &first, &last);
    for (int64_t n = first; n < last; n++) {
        int64_t from = n / groups * INT(2) + n % groups * group;
        for (int64_t i = 0; i < group; i += 16)
            vf_store(PTR(float, 6) + n * group + i, load_any(PTR(void, 0), from + i, (int)INT(1)));
    }
}
