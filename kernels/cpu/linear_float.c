/* Products with float32 and bfloat16 matrices as they lie, row by row, read once for all inputs.
 *
 * An output's sum runs over lanes: lane l adds columns l, l + 16, l + 32 ... (bfloat16 by pairs where
 * the machine multiplies pairs), and the lanes are added in vf_sum's order. Nothing else enters, so
 * the number of rows does not matter.
 */
#include "ops.h"
#include "vec.h"

#if RK_DPBF16
#define PAIRS 32 /* columns that one step takes of bfloat16 */
typedef __m512bh wide16;
INLINE wide16 load_pairs(const bf16 *p, int n) {
    if (n == PAIRS) return (__m512bh)_mm512_loadu_si512(p);
    return (__m512bh)_mm512_maskz_loadu_epi16((1u << n) - 1, p);
}
#endif

#define APART (RK_ISA == 256) /* whether x is float32 beside bfloat16 weights, and lies apart */

#if APART
/* 16 columns of bfloat16 as floats: the even ones, then the odd ones, an instruction each. */
INLINE vf halves_apart(__m256i x) {
    return (vf){_mm256_castsi256_ps(_mm256_slli_epi32(x, 16)),
                _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32((int)0xffff0000u)))};
}
INLINE vf load_halves(const bf16 *p) { return halves_apart(_mm256_loadu_si256((const __m256i *)p)); }
/* The sum of lanes that lie as halves_apart puts them, in the order of vf_sum. */
INLINE float sum_halves(vf x) {
    __m256 low = _mm256_unpacklo_ps(x.a, x.b), high = _mm256_unpackhi_ps(x.a, x.b);
    return vf_sum((vf){_mm256_permute2f128_ps(low, high, 0x20),
                       _mm256_permute2f128_ps(low, high, 0x31)});
}
#else
INLINE vf load_halves(const bf16 *p) { return vf_load_bf16(p); }
INLINE float sum_halves(vf x) { return vf_sum(x); }
#endif

/* `part` columns from the k-th, zeros behind them. */
INLINE vf load_columns(const void *p, int64_t k, int part, const int half) {
    bf16 v[16] = {0};
    if (!half && part == 16) return vf_load((const float *)p + k);
    if (!half) return vf_load_part((const float *)p + k, part);
    if (part == 16) return load_halves((const bf16 *)p + k);
    memcpy(v, (const bf16 *)p + k, (size_t)part * 2);
    return load_halves(v);
}

/* As one that is not loaded again for each use: AVX2 multiplies faster than it loads. */
INLINE vf kept(vf x) {
#if RK_ISA == 256
    __asm__("" : "+x"(x.a), "+x"(x.b));
#endif
    return x;
}

/* `part` columns from the k-th, added to the sums. All that is asked for is asked for first: between
 * the loads, it costs compilers registers. */
INLINE void add_columns(const int rows, const int outs, const int half, const char *x,
                        int64_t x_stride, const char *w, int64_t columns, int64_t next, int64_t k,
                        int part, vf *sum) {
    const int width = half ? 2 : 4, x_half = half && !APART, x_part = half && APART ? 16 : part;
    vf v[8];
    if (next)
        for (int o = 0; o < outs; o++) __builtin_prefetch(w + (next + k * outs + 16 * o) * width);
    UNROLL
    for (int o = 0; o < outs; o++) {
        v[o] = load_columns(w + o * columns * width, k, part, half);
        if (rows > 1) v[o] = kept(v[o]);
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        vf u = kept(load_columns(x + r * x_stride * (x_half ? 2 : 4), k, x_part, x_half));
        UNROLL
        for (int o = 0; o < outs; o++) sum[r * outs + o] = vf_fma(u, v[o], sum[r * outs + o]);
    }
}

/* `outs` outputs of `rows` rows; both are constants where this is inlined. Sums stay in registers, for
 * the last columns are added by themselves: parts would be made in memory, and sums with them.
 * Meanwhile the weights `next` elements on are asked for, unless it is 0, one after the other as they
 * lie. Where x lies APART, each 16 columns are as halves_apart puts them, zeros behind the last. */
INLINE void block_any(const int rows, const int outs, const int half, const void *x,
                      int64_t x_stride, const void *w, int64_t columns, int64_t next,
                      float *result) {
    vf sum[16];
    int64_t k = 0;
    UNROLL
    for (int i = 0; i < rows * outs; i++) sum[i] = vf_set(0);
    for (; k + 16 <= columns; k += 16)
        add_columns(rows, outs, half, x, x_stride, w, columns, next, k, 16, sum);
    if (k < columns)
        add_columns(rows, outs, half, x, x_stride, w, columns, next, k, (int)(columns - k), sum);
    UNROLL
    for (int i = 0; i < rows * outs; i++) result[i] = half ? sum_halves(sum[i]) : vf_sum(sum[i]);
}
#define block_float(rows, outs, ...) block_any(rows, outs, 0, __VA_ARGS__)

#if RK_DPBF16
/* As add_columns and block_any, by pairs of bfloat16. */
INLINE void add_pairs(const int rows, const int outs, const bf16 *x, int64_t x_stride,
                      const bf16 *w, int64_t columns, int64_t next, int64_t k, int part, vf *sum) {
    wide16 v[8];
    if (next)
        for (int o = 0; o < outs; o++) __builtin_prefetch(w + next + k * outs + PAIRS * o);
    UNROLL
    for (int o = 0; o < outs; o++) v[o] = load_pairs(w + o * columns + k, part);
    UNROLL
    for (int r = 0; r < rows; r++) {
        wide16 u = load_pairs(x + r * x_stride + k, part);
        UNROLL
        for (int o = 0; o < outs; o++)
            sum[r * outs + o] = _mm512_dpbf16_ps(sum[r * outs + o], u, v[o]);
    }
}
INLINE void block_half(const int rows, const int outs, const bf16 *x, int64_t x_stride,
                       const bf16 *w, int64_t columns, int64_t next, float *result) {
    vf sum[16];
    int64_t k = 0;
    UNROLL
    for (int i = 0; i < rows * outs; i++) sum[i] = vf_set(0);
    for (; k + PAIRS <= columns; k += PAIRS)
        add_pairs(rows, outs, x, x_stride, w, columns, next, k, PAIRS, sum);
    if (k < columns)
        add_pairs(rows, outs, x, x_stride, w, columns, 0, k, (int)(columns - k), sum);
    UNROLL
    for (int i = 0; i < rows * outs; i++) result[i] = vf_sum(sum[i]);
}
#else
#define block_half(rows, outs, ...) block_any(rows, outs, 1, __VA_ARGS__)
#endif

#define BLOCK(rows, outs)                                                                          \
    static void block_##rows##_##outs(const void *x, int64_t x_stride, const void *w,              \
                                      int64_t columns, int64_t next, int half, float *result) {    \
        if (half) block_half(rows, outs, x, x_stride, w, columns, next, result);                   \
        else block_float(rows, outs, x, x_stride, w, columns, next, result);                       \
    }
/* 8 outputs of some rows, and of one row, are made in parts whose sums fit the registers. */
#if RK_ISA == 256
#define ROWS 2
#define PART block_2_2
#define PART_OUTS 2
#define ROW block_1_4
#define ROW_OUTS 4
BLOCK(2, 2)
BLOCK(1, 4)
#else
#define ROWS 4
#define PART block_4_4
#define PART_OUTS 4
#define ROW block_1_8
#define ROW_OUTS 8
BLOCK(4, 4)
BLOCK(1, 8)
#endif
BLOCK(1, 1)

static void all_outputs(const int64_t *arg, rk_thread *t) {
    int64_t x_stride = INT(1), rows = INT(4), columns = INT(5), outputs = INT(6), first, last;
    int half = (int)INT(3), half_out = (int)INT(9), width = half ? 2 : 4;
    int x_width = APART && half ? 4 : width;
    const float *bias = PTR(float, 7);
    int64_t soon = 8 * rk_share_ahead(t, (outputs + 7) / 8);
    rk_share(t, (outputs + 7) / 8, &first, &last);
    last = last * 8 < outputs ? last * 8 : outputs;
    soon = soon < outputs ? soon : outputs;
    for (int64_t o = first * 8, outs; o < last; o += outs) {
        outs = last - o >= 8 ? 8 : 1;
        for (int64_t r = 0, count; r < rows; r += count) {
            const char *x = PTR(char, 0) + r * x_stride * x_width;
            const char *w = PTR(char, 2) + o * columns * width;
            int64_t next = !r && soon - o >= 16 ? 8 * columns : 0;
            float result[64];
            count = rows >= r + ROWS ? ROWS : 1;
            if (count == ROWS && outs == 8) {
                float parts[8 / PART_OUTS][ROWS * PART_OUTS];
                for (int i = 0; i < 8 / PART_OUTS; i++)
                    PART(x, x_stride, w + i * PART_OUTS * columns * width, columns, next, half,
                         parts[i]);
                for (int i = 0; i < ROWS; i++)
                    for (int j = 0; j < 8; j++)
                        result[i * 8 + j] = parts[j / PART_OUTS][i * PART_OUTS + j % PART_OUTS];
            } else if (outs == 8) {
                for (int i = 0; i < 8; i += ROW_OUTS)
                    ROW(x, x_stride, w + i * columns * width, columns, next, half, result + i);
            } else {
                count = 1;
                block_1_1(x, x_stride, w, columns, next, half, result);
            }
            for (int64_t i = 0; i < count; i++)
                for (int64_t j = 0; j < outs; j++)
                    put_any(PTR(void, 8), (r + i) * INT(10) + o + j,
                            result[i * outs + j] + (bias ? bias[o + j] : 0.0f), half_out);
        }
    }
}

#if APART
/* bfloat16 inputs become floats as block_half reads them, as many rows at a time as stay in a cache. */
static void in_parts(const int64_t *arg, rk_thread *t) {
    int64_t rows = INT(4), columns = INT(5), stride = (columns + 15) / 16 * 16, mine[RK_ARGS];
    int64_t most = rows < 64 ? rows : 64;
    float *apart = rk_scratch(t, (size_t)(most * stride * 4));
    memcpy(mine, arg, sizeof mine);
    mine[0] = (int64_t)(intptr_t)apart;
    mine[1] = stride;
    for (int64_t first = 0; first < rows; first += most) {
        mine[4] = rows - first < most ? rows - first : most;
        for (int64_t r = 0; r < mine[4]; r++) {
            const bf16 *x = PTR(bf16, 0) + (first + r) * INT(1);
            for (int64_t k = 0; k < columns; k += 16)
                vf_store(apart + r * stride + k,
                         load_columns(x, k, columns - k < 16 ? (int)(columns - k) : 16, 1));
        }
        mine[8] = INT(8) + first * INT(10) * (INT(9) ? 2 : 4);
        all_outputs(mine, t);
    }
}
#endif

/* 0 x, 1 row stride, 2 weight [outputs, columns], 3 half of x and weight, 4 rows, 5 columns,
 * 6 outputs, 7 bias float32 or 0, 8 out, 9 half of out, 10 row stride of out
 */
void rk_linear_float(const int64_t *arg, rk_thread *t) {
#if APART
    if (INT(3)) {
        in_parts(arg, t);
        return;
    }
#endif
    all_outputs(arg, t);
}
