/* Keys and values of pages in 2 or 4 bits, whose layout is that of kernels/kivi.py, as floats.
 *
 * A page in few bits is of FEW_PAGE tokens, and a STEP of a few of them begins with one. A page table
 * of a call over such pages names them by their number, and plain pages by theirs added to
 * `num_codes`.
 */
#ifndef RK_FEW_BITS_H
#define RK_FEW_BITS_H

#include "stage.h"

/* As find_rows. The codes of a token stand for its row, and s->few for where their page begins. */
static void find_few(const call *c, space *s, int is_value, int32_t row, int64_t head,
                     int64_t first, int64_t end, const char **to) {
    const rk_plan *plan = c->plan;
    const int32_t *table = plan->kv_indices + plan->kv_indptr[row];
    const char *pages = is_value ? c->v_pages : c->k_pages, *codes = is_value ? c->v_codes : c->k_codes;
    int64_t code_row = c->dim * c->bits / 8;
    int64_t count = end - first < STEP ? end - first : STEP, i = 0;
    for (int64_t side = 0; side < STEP / FEW_PAGE; side++) {
        const char *page = NULL, *at = NULL;
        int64_t width = code_row, stop = (side + 1) * FEW_PAGE < count ? (side + 1) * FEW_PAGE : count;
        if (i < count) {
            int64_t number = table[(first + i) / FEW_PAGE];
            if (number < c->num_codes)
                at = page = codes + (number * plan->kv_heads + head) * rk_few_bytes(c->dim, c->bits);
            else
                width = c->row_bytes, at = pages + ((number - c->num_codes) * plan->kv_heads + head) *
                                                       FEW_PAGE * width;
        }
        if (to == s->row_of) s->few[side] = page;
        for (; i < stop; i++, at += width) to[i] = at;
    }
    for (; i < STEP; i++) to[i] = (const char *)s->zeros;
}

static void codes_of(const uint8_t *from, int64_t dim, int bits, int8_t *to) {
    if (bits == 4)
        for (int64_t i = 0; i < dim / 2; i++) {
            to[2 * i] = from[i] & 15;
            to[2 * i + 1] = from[i] >> 4;
        }
    else
        for (int64_t i = 0; i < dim / 4; i++)
            for (int j = 0; j < 4; j++) to[4 * i + j] = from[i] >> 2 * j & 3;
}

/* A page as [FEW_PAGE][dim] floats. A key's channel, and 32 channels of a value, are of one scale. */
INLINE void widen_page(const call *c, const char *page, const int is_value, float *numbers,
                       float *to) {
    int64_t dim = c->dim, row = dim * c->bits / 8, groups = dim / FEW_PAGE;
    const f16 *tail = (const f16 *)(page + FEW_PAGE * row);
    int8_t codes[MAX_DIM];
    for (int64_t d = 0; d < 2 * dim; d += 16) vf_store(numbers + d, vf_load_f16(tail + d));
    for (int64_t t = 0; t < FEW_PAGE; t++, to += dim) {
        codes_of((const uint8_t *)page + t * row, dim, c->bits, codes);
        for (int64_t d = 0; d < dim; d += 16) {
            const float *scale = numbers + (is_value ? t * groups + d / FEW_PAGE : d);
            vf by = is_value ? vf_set(scale[0]) : vf_load(scale);
            vf zero = is_value ? vf_set(scale[dim]) : vf_load(scale + dim);
            vf_store(to + d, vf_add(vf_mul(vf_load_i8(codes + d), by), zero));
        }
    }
}

/* The rows of a step as float32, and their addresses to those. */
static void widen_few(const call *c, space *s, const int is_value) {
    float *numbers = s->wide + STEP * c->dim;
    for (int64_t side = 0; side < STEP / FEW_PAGE; side++) {
        int64_t i = side * FEW_PAGE, end = i + FEW_PAGE;
        if (s->few[side]) widen_page(c, s->few[side], is_value, numbers, s->wide + i * c->dim);
        for (; i < end; i++) {
            const char *row = s->row_of[i];
            float *to = s->wide + i * c->dim;
            if (row == (const char *)s->zeros || (!s->few[side] && c->plain_type == PAGES_F32)) continue;
            for (int64_t d = 0; d < c->dim && !s->few[side]; d += 16)
                vf_store(to + d, c->plain_type == PAGES_F16 ? vf_load_f16((const f16 *)row + d)
                                                            : vf_load_bf16((const bf16 *)row + d));
            s->row_of[i] = (const char *)to;
        }
    }
}

#endif
