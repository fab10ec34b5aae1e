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
INLINE wide16 load_pairs(const bf16 *p) { return (__m512bh)_mm512_loadu_si512(p); }
INLINE wide16 load_pairs_part(const bf16 *p, int n) {
    return (__m512bh)_mm512_maskz_loadu_epi16((1u << n) - 1, p);
}
#endif

/* `outs` outputs of `rows` rows; both are constants where this is inlined. Meanwhile the weights
 * `next` elements on are asked for, unless it is 0, one after the other as they lie. */
INLINE void block_float(const int rows, const int outs, const float *x, int64_t x_stride,
                        const float *w, int64_t columns, int64_t next, float *result) {
    vf sum[16];
    int64_t k = 0;
    for (int i = 0; i < rows * outs; i++) sum[i] = vf_set(0);
    for (; k < columns; k += 16) {
        int part = columns - k < 16 ? (int)(columns - k) : 16;
        vf v[8];
        for (int o = 0; o < outs; o++) {
            v[o] = part == 16 ? vf_load(w + o * columns + k)
                              : vf_load_part(w + o * columns + k, part);
            if (next) __builtin_prefetch(w + next + k * outs + 16 * o);
        }
        UNROLL
        for (int r = 0; r < rows; r++) {
            vf u = part == 16 ? vf_load(x + r * x_stride + k)
                              : vf_load_part(x + r * x_stride + k, part);
            UNROLL
            for (int o = 0; o < outs; o++) sum[r * outs + o] = vf_fma(u, v[o], sum[r * outs + o]);
        }
    }
    for (int i = 0; i < rows * outs; i++) result[i] = vf_sum(sum[i]);
}

#if RK_DPBF16
INLINE void block_half(const int rows, const int outs, const bf16 *x, int64_t x_stride,
                       const bf16 *w, int64_t columns, int64_t next, float *result) {
    vf sum[16];
    int64_t k = 0;
    for (int i = 0; i < rows * outs; i++) sum[i] = vf_set(0);
    for (; k + PAIRS <= columns; k += PAIRS) {
        wide16 v[8];
        for (int o = 0; o < outs; o++) {
            v[o] = load_pairs(w + o * columns + k);
            if (next) __builtin_prefetch(w + next + k * outs + PAIRS * o);
        }
        UNROLL
        for (int r = 0; r < rows; r++) {
            wide16 u = load_pairs(x + r * x_stride + k);
            UNROLL
            for (int o = 0; o < outs; o++)
                sum[r * outs + o] = _mm512_dpbf16_ps(sum[r * outs + o], u, v[o]);
        }
    }
    if (k < columns) {
        int part = (int)(columns - k);
        wide16 v[8];
        for (int o = 0; o < outs; o++) v[o] = load_pairs_part(w + o * columns + k, part);
        UNROLL
        for (int r = 0; r < rows; r++) {
            wide16 u = load_pairs_part(x + r * x_stride + k, part);
            UNROLL
            for (int o = 0; o < outs; o++)
                sum[r * outs + o] = _mm512_dpbf16_ps(sum[r * outs + o], u, v[o]);
        }
    }
    for (int i = 0; i < rows * outs; i++) result[i] = vf_sum(sum[i]);
}
#else
INLINE vf load_half_part(const bf16 *p, int n) {
    bf16 v[16] = {0};
    memcpy(v, p, (size_t)n * 2);
    return vf_load_bf16(v);
}
INLINE void block_half(const int rows, const int outs, const bf16 *x, int64_t x_stride,
                       const bf16 *w, int64_t columns, int64_t next, float *result) {
    vf sum[16];
    for (int i = 0; i < rows * outs; i++) sum[i] = vf_set(0);
    for (int64_t k = 0; k < columns; k += 16) {
        int part = columns - k < 16 ? (int)(columns - k) : 16;
        vf v[8];
        for (int o = 0; o < outs; o++) {
            v[o] = part == 16 ? vf_load_bf16(w + o * columns + k)
                              : load_half_part(w + o * columns + k, part);
            if (next) __builtin_prefetch(w + next + k * outs + 16 * o);
        }
        UNROLL
        for (int r = 0; r < rows; r++) {
            vf u = part == 16 ? vf_load_bf16(x + r * x_stride + k)
                              : load_half_part(x + r * x_stride + k, part);
            UNROLL
            for (int o = 0; o < outs; o++) sum[r * outs + o] = vf_fma(u, v[o], sum[r * outs + o]);
        }
    }
    for (int i = 0; i < rows * outs; i++) result[i] = vf_sum(sum[i]);
}
#endif

#define BLOCK(rows, outs)                                                                          \
    static void block_##rows##_##outs(const void *x, int64_t x_stride, const void *w,              \
                                      int64_t columns, int64_t next, int half, float *result) {    \
        if (half) block_half(rows, outs, x, x_stride, w, columns, next, result);                   \
        else block_float(rows, outs, x, x_stride, w, columns, next, result);                       \
    }
BLOCK(4, 4)
BLOCK(1, 8)
BLOCK(1, 1)

/* 0 x, 1 row stride, 2 weight [outputs, columns], 3 half of x and weight, 4 rows, 5 columns,
 * 6 outputs, 7 bias float32 or 0, 8 out, 9 half of out, 10 row stride of out
 */
void rk_linear_float(const int64_t *arg, rk_thread *t) {
    int64_t x_stride = INT(1), rows = INT(4), columns = INT(5), outputs = INT(6), first, last;
    int half = (int)INT(3), half_out = (int)INT(9), width = half ? 2 : 4;
    const float *bias = PTR(float, 7);
    int64_t soon = 8 * rk_share_ahead(t, (outputs + 7) / 8);
    rk_share(t, (outputs + 7) / 8, &first, &last);
    last = last * 8 < outputs ? last * 8 : outputs;
    soon = soon < outputs ? soon : outputs;
    for (int64_t o = first * 8, outs; o < last; o += outs) {
        outs = last - o >= 8 ? 8 : 1;
        for (int64_t r = 0, count; r < rows; r += count) {
            const char *x = PTR(char, 0) + r * x_stride * width;
            const char *w = PTR(char, 2) + o * columns * width;
            int64_t next = !r && soon - o >= 16 ? 8 * columns : 0;
            float result[64];
            count = rows >= r + 4 ? 4 : 1;
            if (count == 4 && outs == 8) {
                float parts[2][16];
                for (int side = 0; side < 2; side++)
                    block_4_4(x, x_stride, w + side * 4 * columns * width, columns, next, half,
                              parts[side]);
                for (int i = 0; i < 4; i++)
                    for (int j = 0; j < 8; j++) result[i * 8 + j] = parts[j / 4][i * 4 + j % 4];
            } else if (outs == 8) {
                block_1_8(x, x_stride, w, columns, next, half, result);
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
