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
 * Activations are rounded to 8 bits with one scale a group (quantize.c). A group's dot product is
 * exact; groups are added in order, each with the same four roundings, whatever the number of rows.
 */
#include "dots.h"

typedef struct {
    const int8_t *x;      /* of the first row of the block */
    const float *x_scale;
    const float *x_sum;
    int64_t stride, groups; /* bytes of a row of x; groups of it */
} activations;

/* `tiles` tiles of 16 outputs for `rows` rows: what is loaded for one row or tile serves the others.
 * rows, tiles and the form are constants where this is inlined. */
INLINE void block(const int rows, const int tiles, const int bits, const int group,
                  const int has_low, const int half_scales, const int zero, tile w,
                  activations a, vf *result) {
    const int quads = bits == 4 ? group / 8 : group / 4, scale_bytes = half_scales ? 32 : 64;
    vf sum[8];
    for (int i = 0; i < rows * tiles; i++) sum[i] = vf_set(0);
    for (int64_t g = 0; g < a.groups; g++) {
        const int8_t *x = a.x + g * group * (STAGED(bits, 8) ? 2 : 1);
        vi dot[8];
        ask_ahead(&w.next);
        group_dots(rows, tiles, bits, group, &w, x, a.stride, dot);
        w.code += 64 * quads;
        UNROLL
        for (int t = 0; t < tiles; t++) {
            const char *scale = w.scale + t * w.scale_bytes;
            vf d = half_scales ? vf_load_f16((const f16 *)scale) : vf_load((const float *)scale);
            vf low = d;
            if (has_low)
                low = half_scales ? vf_load_f16((const f16 *)(scale + scale_bytes))
                                  : vf_load((const float *)(scale + scale_bytes));
            UNROLL
            for (int r = 0; r < rows; r++) {
                vf s = vf_set(a.x_scale[r * a.groups + g]);
                vf x_sum = vf_set(a.x_sum[r * a.groups + g]);
                vf term = vf_of_vi(dot[r * tiles + t]); /* all whole and below 2^24: exact so far */
                if (zero) term = vf_fma(x_sum, vf_set((float)-zero), term);
                term = vf_mul(term, d);
                if (has_low) term = vf_fma(low, x_sum, term);
                sum[r * tiles + t] = vf_fma(term, s, sum[r * tiles + t]);
            }
        }
        w.scale += scale_bytes * (1 + has_low);
    }
    for (int i = 0; i < rows * tiles; i++) result[i] = sum[i];
}

/* By address: copied arguments are stored in parts and loaded whole, which waits for all stores. */
typedef void block_function(const tile *, const activations *, vf *);
#define BLOCK(name, rows, tiles, ...)                                                              \
    static void name##_##rows##_##tiles(const tile *w, const activations *a, vf *sum) {         \
        block(rows, tiles, __VA_ARGS__, *w, *a, sum);                                              \
    }
#if RK_ISA == 512
#define WIDEST(name, ...) BLOCK(name, 4, 2, __VA_ARGS__)
#define ROWS(name) {name##_1_1, name##_2_1, name##_4_1, name##_4_2}
#else /* without registers for two tiles */
#define WIDEST(name, ...)
#define ROWS(name) {name##_1_1, name##_2_1, name##_4_1, NULL}
#endif
#define FORM(name, ...)                                                                            \
    BLOCK(name, 1, 1, __VA_ARGS__)                                                                 \
    BLOCK(name, 2, 1, __VA_ARGS__)                                                                 \
    BLOCK(name, 4, 1, __VA_ARGS__)                                                                 \
    WIDEST(name, __VA_ARGS__)
RK_FORMS(FORM)

/* In the order of the `form` argument; columns: 1, 2, 4 rows of one tile, 4 of two. */
static block_function *const forms[][4] = {ROWS(q4_0), ROWS(q4_1), ROWS(q5_0), ROWS(q5_1),
                                          ROWS(q8_0), ROWS(q4_k), ROWS(q5_k), ROWS(q6_k)};

#define BITS(name, bits, ...) bits,
static const int bits_of[] = {RK_FORMS(BITS)};

static void finish(const vf *sum, int rows, int tiles, const float *bias, void *out, int64_t stride,
                   int64_t count, int half) {
    for (int i = 0; i < rows * tiles; i++) {
        int64_t first = i % tiles * 16, at = i / tiles * stride + first, left = count - first;
        put_outputs(sum[i], bias ? bias + first : 0, out, at, left, half);
    }
}

/* Outputs of `tiles` tiles from the n-th for `step` rows from `row`. */
static void run_block(const int64_t *arg, int64_t n, int64_t row, int64_t step, int64_t tiles,
                      ahead next) {
    int64_t columns = INT(10), groups = columns / INT(11), stride = INT(15);
    int64_t stride_x = columns * (STAGED(bits_of[INT(2)], 8) ? 2 : 1);
    int half = (int)INT(14);
    tile w = {PTR(uint8_t, 0) + n * INT(3), PTR(char, 1) + n * INT(4), INT(3), INT(4), next};
    activations a = {PTR(int8_t, 6) + row * stride_x, PTR(float, 7) + row * groups,
                     PTR(float, 8) + row * groups, stride_x, groups};
    const float *bias = INT(12) ? PTR(float, 12) + n * 16 : NULL;
    char *out = PTR(char, 13) + (row * stride + n * 16) * (half ? 2 : 4);
    ask_for_outputs(out, 0, step, stride, tiles, half);
    vf sum[8];
    forms[INT(2)][tiles == 2 ? 3 : step / 2](&w, &a, sum);
    finish(sum, (int)step, (int)tiles, bias, out, stride, INT(5) - n * 16, half);
}

/* `tiles` tiles from the n-th for all rows; tiles before `soon` follow. */
static void all_rows(const int64_t *arg, int64_t n, int64_t tiles, int64_t soon) {
    for (int64_t row = 0, rows = INT(9), step; row < rows; row += step) {
        step = rows - row >= 4 ? 4 : rows - row >= 2 ? 2 : 1;
        if (step == 4 && tiles == 2) {
            run_block(arg, n, row, step, tiles, after_two(arg, n, row, soon));
        } else {
            for (int64_t i = 0; i < tiles; i++)
                run_block(arg, n + i, row, step, 1, after_tile(arg, n + i, soon));
        }
    }
}

static void all_tiles(const int64_t *arg, rk_thread *t) {
    int64_t rows = INT(9), count = (INT(5) + 15) / 16, soon = rk_share_ahead(t, count), first, last;
    rk_share(t, count, &first, &last);
    for (int64_t n = first, tiles; n < last; n += tiles) {
        tiles = forms[INT(2)][3] && rows >= 4 && n + 2 <= last ? 2 : 1;
        all_rows(arg, n, tiles, soon);
    }
}

/* 0 codes, 1 scales, 2 form, 3 bytes of codes in a tile, 4 bytes of scales, 5 outputs,
 * 6 x codes, 7 x scales, 8 x sums, 9 rows, 10 columns, 11 group, 12 bias float32 or 0,
 * 13 out, 14 half of out, 15 row stride of out
 */
void rk_linear_packed(const int64_t *arg, rk_thread *t) {
    if (STAGED(bits_of[INT(2)], 8)) in_stages(arg, t, 8, all_tiles);
    else all_tiles(arg, t);
}
