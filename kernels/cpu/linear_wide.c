/* Products with packed weights whose inputs lose little or nothing: 16 bits, or floats.
 *
 *   16 bits   a group of columns has one scale, as with 8 bits; a code is 256 * high + low, two
 *             bytes that meet the weights' codes by themselves. The group's dot product is a whole
 *             number, exact, rounded to float32 once.
 *   floats    weights become float32 in registers, bit by bit those of the dequantised matrix, and
 *             are multiplied and added column by column in two running sums, even and odd.
 *
 * Weights lie as linear_packed.c draws them. The order of additions of an output is the same
 * whatever the number of rows.
 */
#include "dots.h"

typedef struct {
    const void *x; /* codes or floats of the first row of the block */
    const float *x_scale, *x_sum;
    int64_t columns, groups;
} inputs;

/* `tiles` tiles of 16 outputs for `rows` rows; these and the form are constants where inlined. */
INLINE void block_16(const int rows, const int tiles, const int bits, const int group,
                     const int has_low, const int half_scales, const int zero, tile w, inputs a,
                     vf *result) {
    const int quads = bits == 4 ? group / 8 : group / 4, scale_bytes = half_scales ? 32 : 64;
    vf sum[8];
    for (int i = 0; i < rows * tiles; i++) sum[i] = vf_set(0);
    for (int64_t g = 0; g < a.groups; g++) {
        const int8_t *x = (const int8_t *)a.x + 2 * g * group;
        vi dot[8];
        ask_ahead(&w.next);
        group_dots_16(rows, tiles, bits, group, &w, x, 2 * a.columns, dot);
        w.code += 64 * quads;
        UNROLL
        for (int t = 0; t < tiles; t++) {
            const char *scale = w.scale + t * w.scale_bytes;
            vf d = load_scale(scale, half_scales);
            vf base = has_low ? load_scale(scale + scale_bytes, half_scales) : d;
            UNROLL
            for (int r = 0; r < rows; r++) {
                int n = r * tiles + t;
                float x_sum = a.x_sum[r * a.groups + g];
                if (zero) dot[n] = vi_add(dot[n], vi_set((int32_t)x_sum * -zero)); /* below 2^29 */
                vf term = vf_mul(vf_of_vi(dot[n]), d);
                if (has_low) term = vf_fma(base, vf_set(x_sum), term);
                sum[n] = vf_fma(term, vf_set(a.x_scale[r * a.groups + g]), sum[n]);
            }
        }
        w.scale += scale_bytes * (1 + has_low);
    }
    for (int i = 0; i < rows * tiles; i++) result[i] = sum[i];
}

/* 4 columns of 16 outputs from their codes, times x, added to the even and odd sums of each row. */
INLINE void add_columns(const int rows, const int has_low, const int zero, codes c, vf d, vf base,
                        const float *x, int64_t columns, vf *sum) {
    UNROLL
    for (int j = 0; j < 4; j++) {
        vf w = vf_of_vi(codes_column(c, j));
        if (zero) w = vf_sub(w, vf_set(zero));
        w = has_low ? vf_fma(w, d, base) : vf_mul(w, d);
        UNROLL
        for (int r = 0; r < rows; r++)
            sum[2 * r + j % 2] = vf_fma(w, vf_set(x[r * columns + j]), sum[2 * r + j % 2]);
    }
}

INLINE void block_32(const int rows, const int bits, const int group, const int has_low,
                     const int half_scales, const int zero, tile w, inputs a, vf *result) {
    const int quads = bits == 4 ? group / 8 : group / 4, scale_bytes = half_scales ? 32 : 64;
    vf sum[16];
    for (int i = 0; i < 2 * rows; i++) sum[i] = vf_set(0);
    for (int64_t g = 0; g < a.groups; g++) {
        const float *x = (const float *)a.x + g * group;
        ask_ahead(&w.next);
        vf d = load_scale(w.scale, half_scales);
        vf base = has_low ? load_scale(w.scale + scale_bytes, half_scales) : d;
        for (int i = 0; i < quads; i++) {
            codes c = codes_load(w.code + 64 * i);
            codes first = bits == 4 ? codes_low(c) : c;
            add_columns(rows, has_low, zero, first, d, base, x + 4 * i, a.columns, sum);
            if (bits == 4)
                add_columns(rows, has_low, zero, codes_high(c), d, base, x + group / 2 + 4 * i,
                            a.columns, sum);
        }
        w.code += 64 * quads;
        w.scale += scale_bytes * (1 + has_low);
    }
    for (int r = 0; r < rows; r++) result[r] = vf_add(sum[2 * r], sum[2 * r + 1]);
}

/* For each form: 16 bits with 1, 2, 4 rows of a tile and 4 of two; floats with 1, 2, 4, 8 rows. */
typedef void block_function(const tile *, const inputs *, vf *); /* as in linear_packed.c */
#define BLOCK_16(name, rows, tiles, ...)                                                           \
    static void name##_16_##rows##_##tiles(const tile *w, const inputs *a, vf *sum) {              \
        block_16(rows, tiles, __VA_ARGS__, *w, *a, sum);                                           \
    }
#define BLOCK_32(name, rows, ...)                                                                  \
    static void name##_32_##rows(const tile *w, const inputs *a, vf *sum) {                        \
        block_32(rows, __VA_ARGS__, *w, *a, sum);                                                  \
    }
#if RK_ISA == 512
#define WIDEST(name, ...) BLOCK_16(name, 4, 2, __VA_ARGS__) BLOCK_32(name, 8, __VA_ARGS__)
#define ROWS_16(name, ...) {name##_16_1_1, name##_16_2_1, name##_16_4_1, name##_16_4_2},
#define ROWS_32(name, ...) {name##_32_1, name##_32_2, name##_32_4, name##_32_8},
#else /* without the registers for so many sums */
#define WIDEST(name, ...)
#define ROWS_16(name, ...) {name##_16_1_1, name##_16_2_1, name##_16_4_1, NULL},
#define ROWS_32(name, ...) {name##_32_1, name##_32_2, name##_32_4, NULL},
#endif
#define BLOCKS(name, ...)                                                                          \
    BLOCK_16(name, 1, 1, __VA_ARGS__)                                                              \
    BLOCK_16(name, 2, 1, __VA_ARGS__)                                                              \
    BLOCK_16(name, 4, 1, __VA_ARGS__)                                                              \
    BLOCK_32(name, 1, __VA_ARGS__)                                                                 \
    BLOCK_32(name, 2, __VA_ARGS__)                                                                 \
    BLOCK_32(name, 4, __VA_ARGS__)                                                                 \
    WIDEST(name, __VA_ARGS__)
RK_FORMS(BLOCKS)
static block_function *const forms_16[][4] = {RK_FORMS(ROWS_16)};
static block_function *const forms_32[][4] = {RK_FORMS(ROWS_32)};

/* Outputs of `tiles` tiles from the n-th, for `step` rows from `row`. */
static void run_block(const int64_t *arg, block_function *f, int64_t n, int64_t row, int64_t step,
                      int64_t tiles, ahead next) {
    int64_t columns = INT(10), groups = columns / INT(11), first = n * 16;
    int half = (int)INT(14);
    tile w = {PTR(uint8_t, 0) + n * INT(3), PTR(char, 1) + n * INT(4), INT(3), INT(4), next};
    inputs a = {PTR(char, 6) + row * columns * (INT(16) / 8), PTR(float, 7) + row * groups,
                PTR(float, 8) + row * groups, columns, groups};
    ask_for_outputs(PTR(void, 13), row * INT(15) + first, step, INT(15), tiles, half);
    vf sum[8];
    f(&w, &a, sum);
    for (int64_t i = 0; i < step * tiles; i++) {
        int64_t output = first + i % tiles * 16;
        put_outputs(sum[i], INT(12) ? PTR(float, 12) + output : NULL, PTR(void, 13),
                    (row + i / tiles) * INT(15) + output, INT(5) - output, half);
    }
}

static void all_tiles(const int64_t *arg, rk_thread *t) {
    int64_t rows = INT(9), count = (INT(5) + 15) / 16, soon = rk_share_ahead(t, count), first, last;
    block_function *const *forms = INT(16) == 16 ? forms_16[INT(2)] : forms_32[INT(2)];
    rk_share(t, count, &first, &last);
    for (int64_t n = first, tiles; n < last; n += tiles) {
        tiles = INT(16) == 16 && forms[3] && rows >= 4 && n + 2 <= last ? 2 : 1;
        for (int64_t row = 0, step; row < rows; row += step) {
            int64_t left = rows - row;
            int which = left >= 8 && INT(16) == 32 && forms[3] ? 3 : left >= 4 ? 2 : left >= 2 ? 1 : 0;
            step = 1 << which;
            if (tiles == 2 && step == 4) {
                run_block(arg, forms[3], n, row, step, 2, after_two(arg, n, row, soon));
            } else {
                for (int64_t i = 0; i < tiles; i++)
                    run_block(arg, forms[which], n + i, row, step, 1, after_tile(arg, n + i, soon));
            }
        }
    }
}

/* 0 codes, 1 scales, 2 form, 3 bytes of codes in a tile, 4 bytes of scales, 5 outputs,
 * 6 x, 7 x scales, 8 x sums, as rk_quantize_wide makes them, 9 rows, 10 columns, 11 group,
 * 12 bias float32 or 0, 13 out, 14 half of out, 15 row stride of out, 16 bits of x
 */
void rk_linear_wide(const int64_t *arg, rk_thread *t) {
    if (INT(16) == 16) in_stages(arg, t, 16, all_tiles);
    else all_tiles(arg, t);
}
