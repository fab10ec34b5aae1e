/* Products with 4-bit and 8-bit weights: whole numbers in groups, scaled and added in float32.
 *
 * A weight is scale * (code - zero) + low, the scale and the low of its group of columns. Sixteen
 * rows of the matrix lie interleaved, so that one instruction handles 4 columns of each:
 *
 *   tile (16 rows), group (32 or 16 columns):
 *     codes   8 bit: for each 4 columns: 16 rows x 4 bytes
 *             4 bit: the same, a byte's low half from the first half of the group, its high half
 *                    from the second
 *     scales  16 floats or halves; then 16 lows, where the form has them
 *
 * Activations are rounded to 8 bits with one scale a group. A group's dot product is exact; groups
 * are added in order, each with the same four roundings, whatever the number of rows.
 */
#include "ops.h"
#include "vec.h"

/* Activations to 8 bits.  0 x, 1 half, 2 row stride, 3 rows, 4 columns, 5 group,
 * 6 codes int8 [rows, columns], 7 scales float32 [rows, groups], 8 sums of codes float32 [rows, groups]
 */
void rk_quantize(const int64_t *arg, rk_thread *t) {
    const void *x = PTR(void, 0);
    int64_t columns = INT(4), group = INT(5), groups = columns / group, first, last;
    int half = (int)INT(1);
    rk_share(t, INT(3) * groups, &first, &last);
    for (int64_t n = first; n < last; n++) {
        int64_t from = n / groups * INT(2) + n % groups * group, to = n * group;
        vf largest = vf_set(0), poison = vf_set(0);
        for (int64_t i = 0; i < group; i += 16) {
            vf v = load_any(x, from + i, half);
            largest = vf_max(largest, vf_abs(v));
            poison = vf_fma(v, vf_set(0), poison); /* NaN if any is NaN or infinite */
        }
        float scale = vf_largest(largest) / 127.0f;
        float inverse = scale > 1e-30f && scale <= 3e38f ? 1.0f / scale : 0.0f;
        vf sum = vf_set(0); /* of whole numbers: exact */
        for (int64_t i = 0; i < group; i += 16) {
            vf v = vf_round(vf_mul(load_any(x, from + i, half), vf_set(inverse)));
            v = vf_min(vf_max(v, vf_set(-127.0f)), vf_set(127.0f)); /* -127 where it is NaN */
            vf_store_i8(PTR(int8_t, 6) + to + i, v);
            sum = vf_add(sum, v);
        }
        PTR(float, 7)[n] = (inverse != 0.0f ? scale : 0.0f) + vf_sum(poison);
        PTR(float, 8)[n] = vf_sum(sum);
    }
}

typedef struct {
    const int8_t *x;      /* of the first row of the block */
    const float *x_scale;
    const float *x_sum;
    int64_t columns, groups;
} activations;

/* One tile of 16 outputs for `rows` rows; rows and the form are constants where this is inlined. */
INLINE void tile(const int rows, const int bits, const int group, const int has_low,
                 const int half_scales, const int zero, const uint8_t *code, const char *scale,
                 activations a, vf *sum) {
    const int quads = group / 4, scale_bytes = half_scales ? 32 : 64;
    for (int r = 0; r < rows; r++) sum[r] = vf_set(0);
    for (int64_t g = 0; g < a.groups; g++) {
        codes c[8];
        if (bits == 4) {
            for (int i = 0; i < quads / 2; i++) {
                codes both = codes_load(code + 64 * i);
                c[i] = codes_low(both);
                c[i + quads / 2] = codes_high(both);
            }
            code += 32 * quads;
        } else {
            for (int i = 0; i < quads; i++) c[i] = codes_load(code + 64 * i);
            code += 64 * quads;
        }
        vf d = half_scales ? vf_load_f16((const f16 *)scale) : vf_load((const float *)scale);
        vf low = d;
        scale += scale_bytes;
        if (has_low) {
            low = half_scales ? vf_load_f16((const f16 *)scale) : vf_load((const float *)scale);
            scale += scale_bytes;
        }
        UNROLL
        for (int r = 0; r < rows; r++) {
            const int8_t *x = a.x + r * a.columns + g * group;
            vf s = vf_set(a.x_scale[r * a.groups + g]), x_sum = vf_set(a.x_sum[r * a.groups + g]);
            vi dot = vi_set(0);
            UNROLL
            for (int i = 0; i < quads; i++) dot = codes_dot(dot, c[i], x + 4 * i, bits == 8);
            vf term = vf_of_vi(dot); /* all whole and below 2^24: exact so far */
            if (zero) term = vf_fma(x_sum, vf_set((float)-zero), term);
            term = vf_mul(term, d);
            if (has_low) term = vf_fma(low, x_sum, term);
            sum[r] = vf_fma(term, s, sum[r]);
        }
    }
}

typedef void tile_function(const uint8_t *, const char *, activations, vf *);
#define FORM(name, bits, group, has_low, half_scales, zero)                                        \
    static void name##_1(const uint8_t *c, const char *s, activations a, vf *sum) {                \
        tile(1, bits, group, has_low, half_scales, zero, c, s, a, sum);                            \
    }                                                                                              \
    static void name##_2(const uint8_t *c, const char *s, activations a, vf *sum) {                \
        tile(2, bits, group, has_low, half_scales, zero, c, s, a, sum);                            \
    }                                                                                              \
    static void name##_4(const uint8_t *c, const char *s, activations a, vf *sum) {                \
        tile(4, bits, group, has_low, half_scales, zero, c, s, a, sum);                            \
    }                                                                                              \
    static void name##_8(const uint8_t *c, const char *s, activations a, vf *sum) {                \
        tile(8, bits, group, has_low, half_scales, zero, c, s, a, sum);                            \
    }
FORM(q4_0, 4, 32, 0, 1, 8)
FORM(q4_1, 4, 32, 1, 1, 0)
FORM(q4_k, 4, 32, 1, 0, 0)
FORM(q5_0, 8, 32, 0, 1, 16)
FORM(q5_1, 8, 32, 1, 1, 0)
FORM(q5_k, 8, 32, 1, 0, 0)
FORM(q6_k, 8, 16, 0, 0, 32)
FORM(q8_0, 8, 32, 0, 1, 128)

/* In the order of the `form` argument; columns: 1, 2, 4, 8 rows. */
#define ROWS(name) {name##_1, name##_2, name##_4, name##_8}
static tile_function *const forms[][4] = {ROWS(q4_0), ROWS(q4_1), ROWS(q5_0), ROWS(q5_1),
                                          ROWS(q8_0), ROWS(q4_k), ROWS(q5_k), ROWS(q6_k)};

static void finish(const vf *sum, int rows, const float *bias, void *out, int64_t stride,
                   int64_t count, int half) {
    for (int r = 0; r < rows; r++) {
        float values[16];
        vf_store(values, sum[r]);
        for (int64_t i = 0; i < count; i++)
            put_any(out, r * stride + i, bias ? values[i] + bias[i] : values[i], half);
    }
}

/* 0 codes, 1 scales, 2 form, 3 bytes of codes in a tile, 4 bytes of scales, 5 outputs,
 * 6 x codes, 7 x scales, 8 x sums, 9 rows, 10 columns, 11 group, 12 bias float32 or 0,
 * 13 out, 14 half of out, 15 row stride of out
 */
void rk_linear_packed(const int64_t *arg, rk_thread *t) {
    int64_t outputs = INT(5), rows = INT(9), columns = INT(10), groups = columns / INT(11);
    int64_t first, last;
    int half = (int)INT(14);
    rk_share(t, (outputs + 15) / 16, &first, &last);
    for (int64_t n = first; n < last; n++) {
        const uint8_t *code = PTR(uint8_t, 0) + n * INT(3);
        const char *scale = PTR(char, 1) + n * INT(4);
        const float *bias = INT(12) ? PTR(float, 12) + n * 16 : NULL;
        int64_t count = outputs - n * 16 < 16 ? outputs - n * 16 : 16;
        for (int64_t row = 0, step; row < rows; row += step) {
            int which = rows - row >= 8 ? 3 : rows - row >= 4 ? 2 : rows - row >= 2 ? 1 : 0;
            vf sum[8];
            activations a = {PTR(int8_t, 6) + row * columns, PTR(float, 7) + row * groups,
                             PTR(float, 8) + row * groups, columns, groups};
            step = 1 << which;
            forms[INT(2)][which](code, scale, a, sum);
            char *out = PTR(char, 13) + (row * INT(15) + n * 16) * (half ? 2 : 4);
            finish(sum, (int)step, bias, out, INT(15), count, half);
        }
    }
}
