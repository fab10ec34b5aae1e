/* Quantises full pages to 2 or 4 bits: to the byte as the reference in kernels/kivi.py. */
#include "few_bits.h"

#define SLACK 0x1p-10f
#define TINY 0x1p-24f
#define LARGEST 65000.0f
#define NOT_A_NUMBER 0x7e00 /* in float16 */

typedef struct {
    float low, high, zero, inverse;
    f16 scale_bits, zero_bits;
} group;

/* What a group's numbers follow from: the least and largest of its values. */
static void settle(group *g, int bits, int held) {
    g->zero_bits = f16_of(g->low - fabsf(g->low) * SLACK - TINY);
    g->zero = f16_to_float(g->zero_bits);
    float share = (float)((1.0 + (double)SLACK) / ((1 << bits) - 1));
    g->scale_bits = f16_of((g->high - g->zero) * share + TINY);
    g->inverse = 1.0f / f16_to_float(g->scale_bits);
    if (!held) g->scale_bits = g->zero_bits = NOT_A_NUMBER;
}

/* A page of `type` as floats x [FEW_PAGE][dim], 0 for what is not held; `held`: by value. */
static void read_page(const char *page, int type, int64_t count, float *x, uint8_t *held) {
    for (int64_t i = 0; i < count; i += 16)
        vf_store(x + i, type == PAGES_F32   ? vf_load((const float *)page + i)
                        : type == PAGES_F16 ? vf_load_f16((const f16 *)page + i)
                                            : vf_load_bf16((const bf16 *)page + i));
    for (int64_t i = 0; i < count; i++) {
        held[i] = fabsf(x[i]) <= LARGEST;
        x[i] = held[i] ? x[i] : 0;
    }
}

/* The group of `count` values that lie `stride` apart. */
static group group_of(const float *x, const uint8_t *held, int64_t count, int64_t stride, int bits) {
    group g = {.low = x[0], .high = x[0]};
    int all = 1;
    for (int64_t i = 0; i < count; i++) {
        float value = x[i * stride];
        g.low = value < g.low ? value : g.low;
        g.high = value > g.high ? value : g.high;
        all &= held[i * stride];
    }
    settle(&g, bits, all);
    return g;
}

static void write_row(const float *x, const float *zero, const float *inverse, int64_t dim, int bits,
                      uint8_t *to) {
    int top = (1 << bits) - 1, each = 8 / bits;
    uint8_t codes[MAX_DIM];
    for (int64_t d = 0; d < dim; d++) { /* no value is below its zero, so this rounds down */
        int code = (int)((x[d] - zero[d]) * inverse[d] + 0.5f);
        codes[d] = (uint8_t)(code > top ? top : code);
    }
    for (int64_t i = 0; i < dim / each; i++) {
        int word = 0;
        for (int j = 0; j < each; j++) word |= codes[i * each + j] << j * bits;
        to[i] = (uint8_t)word;
    }
}

static void store_page(const float *x, const uint8_t *held, int64_t dim, int bits, int is_value,
                       uint8_t *to) {
    int64_t row = dim * bits / 8, groups = dim / FEW_PAGE;
    f16 *scales = (f16 *)(to + FEW_PAGE * row), *zeros = scales + dim;
    float zero[MAX_DIM], inverse[MAX_DIM];
    for (int64_t t = 0; t < FEW_PAGE; t++) {
        int64_t at = t * dim, first = is_value ? t * groups : 0;
        for (int64_t n = 0; n < (is_value ? groups : t ? 0 : dim); n++) {
            int64_t from = is_value ? at + n * FEW_PAGE : n;
            group g = group_of(x + from, held + from, FEW_PAGE, is_value ? 1 : dim, bits);
            scales[first + n] = g.scale_bits;
            zeros[first + n] = g.zero_bits;
            for (int64_t d = is_value ? n * FEW_PAGE : n; d < (is_value ? (n + 1) * FEW_PAGE : n + 1); d++)
                zero[d] = g.zero, inverse[d] = g.inverse;
        }
        write_row(x + at, zero, inverse, dim, bits, to + t * row);
    }
}

/* Page sources[i] to page targets[i].  0 k, 1 v, plain pages [pages, heads, FEW_PAGE, dim], 2 their
 * type (ops.h), 3 codes of keys, 4 of values, [pages, heads, page bytes], 5 sources, 6 targets,
 * 7 count, 8 heads, 9 dim, a multiple of 32, 10 bits
 */
void rk_store_pages(const int64_t *arg, rk_thread *t) {
    const int64_t *sources = PTR(int64_t, 5), *targets = PTR(int64_t, 6);
    int64_t heads = INT(8), dim = INT(9), count = FEW_PAGE * dim, first, last;
    int type = (int)INT(2), bits = (int)INT(10);
    float *x = rk_scratch(t, (size_t)count * 5);
    uint8_t *held = (uint8_t *)(x + count);
    rk_share(t, INT(7) * heads * 2, &first, &last);
    for (int64_t n = first; n < last; n++) {
        int64_t page = n / 2 / heads, head = n / 2 % heads, is_value = n % 2;
        const char *from = PTR(char, is_value) +
                           (sources[page] * heads + head) * FEW_PAGE * rk_row_bytes(dim, type);
        uint8_t *to = PTR(uint8_t, 3 + is_value) +
                      (targets[page] * heads + head) * rk_few_bytes(dim, bits);
        read_page(from, type, count, x, held);
        store_page(x, held, dim, bits, (int)is_value, to);
    }
}
