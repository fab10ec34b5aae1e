/* From the scores of a split to its weights, in place. */
#ifndef RK_SOFTMAX_H
#define RK_SOFTMAX_H

#include "amx_attention.h"

#define SOFT_ROWS 3 /* that take turns, since each alone waits for its own results */

INLINE vf capped(vf x, float cap) { /* cap * tanh(x / cap) */
    vf twice = vf_exp(vf_mul(x, vf_set(2.0f / cap)));
    vf tanh = vf_sub(vf_set(1), vf_div(vf_set(2), vf_add(twice, vf_set(1))));
    return vf_mul(vf_set(cap), tanh);
}

/* Scale, cap and hide the scores of a row in place where that takes more than a factor, which is
 * returned. */
static float prepare(const call *c, float *x, int64_t from, int64_t to, int64_t count) {
    if (c->softcap <= 0 && from <= 0 && to >= count) return c->scale;
    for (int64_t key = 0; key < count; key += 16) {
        vf score = vf_mul(vf_load(x + key), vf_set(c->scale));
        vf_store(x + key, c->softcap > 0 ? capped(score, c->softcap) : score);
    }
    for (int64_t i = 0; i < count && i < from; i++) x[i] = -INFINITY;
    for (int64_t i = to > 0 ? to : 0; i < count; i++) x[i] = -INFINITY;
    return 1;
}

/* What weights become: float32; bfloat16 one after the other; or bfloat16 as the upper halves of
 * words, as the matrix unit takes them. */
enum { WEIGHTS_F32, WEIGHTS_BF16, WEIGHTS_UPPER };

/* Set the hidden weights of a row to 0. They were e^-87, of which the row's sum, at least 1, holds
 * nothing. */
static void hide(float *x, int64_t from, int64_t to, int64_t count, int form) {
    int half = form == WEIGHTS_BF16;
    for (int64_t i = 0; i < count && i < from; i++) put_any(x, i, 0, half);
    for (int64_t i = to > 0 ? to : 0; i < count; i++) put_any(x, i, 0, half);
    if (form == WEIGHTS_UPPER) x[count] = 0; /* its lower half is read with the last weight */
}

#if RK_DPBF16
/* e^x for x at most 0, within 3e-6: for results of 8 bits. A polynomial fitted on the range that
 * taking away whole multiples of ln 2 leaves, 1 at 0. */
INLINE vf exp_of_8_bits(vf x) {
    vf y = vf_max(vf_set(-87.0f), x);
    vf n = vf_round(vf_mul(y, vf_set(1.44269504088896341f)));
    vf r = vf_fma(n, vf_set(-0.69314718055994531f), y);
    vf p = vf_fma(r, vf_set(0.0415137485f), vf_set(0.167874739f));
    p = vf_fma(p, r, vf_set(0.50003016f));
    p = vf_fma(p, r, vf_set(0.99996686f));
    return _mm512_scalef_ps(vf_fma(p, r, vf_set(1)), n);
}

/* Weights of 32 keys of a row, rounded to bfloat16 and stored behind where scores are read; their
 * sums by pairs are added to `sum`. */
INLINE vf weigh(float *x, int64_t key, vf scale, vf shift, vf sum, const int form) {
    vf first = exp_of_8_bits(vf_sub(vf_mul(vf_load(x + key), scale), shift));
    vf second = exp_of_8_bits(vf_sub(vf_mul(vf_load(x + key + 16), scale), shift));
    __m512bh both = _mm512_cvtne2ps_pbh(second, first);
    if (form == WEIGHTS_UPPER) {
        bf16 rounded[32];
        _mm512_storeu_si512(rounded, (__m512i)both);
        vf_store(x + key, vf_load_bf16(rounded));
        vf_store(x + key + 16, vf_load_bf16(rounded + 16));
    } else {
        _mm512_storeu_si512((bf16 *)x + key, (__m512i)both);
    }
    return _mm512_dpbf16_ps(sum, both, (__m512bh)_mm512_set1_epi16(0x3f80));
}
#endif

INLINE vf weigh_any(float *x, int64_t key, vf scale, vf shift, vf sum, const int form) {
#if RK_DPBF16
    if (form != WEIGHTS_F32) return weigh(x, key, scale, shift, sum, form);
#endif
    (void)form;
    for (int i = 0; i < 32; i += 16) {
        vf weight = vf_exp(vf_sub(vf_mul(vf_load(x + key + i), scale), shift));
        vf_store(x + key + i, weight);
        sum = vf_add(sum, weight);
    }
    return sum;
}

/* While 32 of `count` keys are weighed, ask for as large a part of the step ahead. */
INLINE void ask_for_part(const call *c, const space *s, int64_t key, int64_t count) {
    for (int64_t i = STEP * key / count; i < STEP * (key + 32) / count; i++)
        for (int64_t at = 0; at < c->row_bytes; at += 64)
            __builtin_prefetch(s->ahead_of[i] + at, 0, 2); /* the first cache has its share under way */
}

/* `rows` rows from r, keys counted from the split's first, `count` of them staged. Sets each row's
 * largest score and its sum of weights. */
INLINE void soften_rows(const int rows, const call *c, space *s, int64_t r, int64_t count,
                        const int form) {
    float *x = s->scores + r * ROW;
    const int32_t *from = s->from + r, *to = s->to + r;
    vf best[SOFT_ROWS], sum[SOFT_ROWS], shift[SOFT_ROWS], scale[SOFT_ROWS];
    for (int i = 0; i < rows; i++) {
        scale[i] = vf_set(prepare(c, x + i * ROW, from[i], to[i], count));
        best[i] = vf_set(-INFINITY);
    }
    for (int64_t key = 0; key < count; key += 16) {
        UNROLL
        for (int i = 0; i < rows; i++)
            best[i] = vf_max(best[i], vf_mul(vf_load(x + i * ROW + key), scale[i]));
    }
    for (int i = 0; i < rows; i++) {
        float top = s->top[r + i] = vf_largest(best[i]);
        shift[i] = vf_set(top == -INFINITY ? 0.0f : top);
        sum[i] = vf_set(0);
    }
    stay_awake(s);
    for (int64_t key = 0; key < count; key += 32) {
        if (!r && s->later) ask_for_part(c, s, key, count);
        UNROLL
        for (int i = 0; i < rows; i++)
            sum[i] = weigh_any(x + i * ROW, key, scale[i], shift[i], sum[i], form);
    }
    for (int i = 0; i < rows; i++) {
        s->sum[r + i] = vf_sum(sum[i]);
        hide(x + i * ROW, from[i], to[i], count, form);
    }
}

INLINE void soften_all(const call *c, space *s, int64_t rows, int64_t count, const int form) {
    int64_t r = 0;
    for (; r + SOFT_ROWS <= rows; r += SOFT_ROWS) soften_rows(SOFT_ROWS, c, s, r, count, form);
    for (; r < rows; r++) soften_rows(1, c, s, r, count, form);
}

static void soften(const call *c, space *s, int64_t rows, int64_t count) {
    if (c->amx) soften_all(c, s, rows, count, WEIGHTS_UPPER);
    else if (c->pairs) soften_all(c, s, rows, count, WEIGHTS_BF16);
    else soften_all(c, s, rows, count, WEIGHTS_F32);
}

#endif
