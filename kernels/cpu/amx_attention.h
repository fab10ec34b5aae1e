/* Attention over bfloat16 pages by the matrix unit (amx.h).
 *
 *   scores [rows][64 keys]   many rows   query [rows][dim]   x  staged keys [dim / 2][64], pairs
 *                            few rows    keys as they lie [16][dim]  x  turned query [dim / 2][4],
 *                                        turned back
 *   out [rows][dim]          weights [rows][16 keys]  x  values as they lie [16][dim]
 *
 * A word of a value's row holds two columns, the even one and the odd one. Weights are words too: one
 * whose upper half is the weight and whose lower half is 0 meets the odd column alone; the same words
 * from two bytes on, the even one. So outputs lie apart, of each 32 columns the even 16 before the
 * odd ones, until they are written.
 *
 * A row's sums take the same products in the same order however many rows there are, and so all rows
 * go this way, also a single one.
 */
#ifndef RK_AMX_ATTENTION_H
#define RK_AMX_ATTENTION_H

#include "amx.h"
#include "stage.h"

#if RK_AMX
/* Whether a call goes this way: the same for all calls over the same pages. */
INLINE int takes_amx(const call *c) { return c->pairs && c->dim % 64 == 0 && rk_amx(); }

/* Many rows' scores and outputs: registers as amx.h tells. */
INLINE void shape_many(space *s, int rows) {
    if (s->shape == rows) return;
    s->shape = rows;
    amx_shape(rows, 64, 64);
}

/* Few rows': 0 and 1 have 16 keys' scores, 6 the turned query, 2 and 3 outputs, 7 weights; 4 and 5
 * keys or values as they lie. A change of shapes would take longer than some keys. */
INLINE void shape_few(space *s, int rows) {
    if (s->shape == 32 + rows) return;
    s->shape = 32 + rows;
    amx_shapes((amx_size[8]){{16, 4 * FEW_ROWS}, {16, 4 * FEW_ROWS}, {rows, 64}, {rows, 64},
                             {16, 64}, {16, 64}, {16, 4 * FEW_ROWS}, {rows, 64}});
}

/* The unit sleeps when it has had no product for some 300 ns, and takes as long to wake: a product
 * for nothing in the midst of other work. Of registers that are set before they are used. */
INLINE void stay_awake(const space *s) {
    if (s->shape) _tile_dpbf16ps(0, 4, 6);
}

INLINE void amx_end(const space *s) {
    if (s->shape) _tile_release();
}

/* 16 keys or values of a step from the i-th on, `stride` bytes apart: where they lie, or copied. */
INLINE const char *rows_in_line(const call *c, const space *s, int i, char *copy, int64_t *stride) {
    const __m512i steps = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
    __m512i apart = _mm512_mullo_epi64(steps, _mm512_set1_epi64(c->row_bytes));
    __m512i first = _mm512_add_epi64(_mm512_set1_epi64((int64_t)(intptr_t)s->row_of[i]), apart);
    __m512i second = _mm512_add_epi64(first, _mm512_set1_epi64(8 * c->row_bytes));
    *stride = c->row_bytes;
    if (!(_mm512_cmpneq_epi64_mask(first, _mm512_loadu_si512(s->row_of + i)) |
          _mm512_cmpneq_epi64_mask(second, _mm512_loadu_si512(s->row_of + i + 8))))
        return s->row_of[i];
    for (int j = 0; j < 16; j++)
        memcpy(copy + j * c->row_bytes, s->row_of[i + j], (size_t)c->row_bytes);
    return copy;
}

/* Ask for as many lines of 16 rows as there are rows, from the row's byte `at` times as many on, in
 * the order in which they lie: so memory's own guesses go along. */
INLINE void ask_in_order(const call *c, const char *const *rows, int64_t at) {
    int64_t bytes = c->row_bytes, from = 16 * at % bytes;
    rows += 16 * at / bytes;
    if (bytes == 128) {
        for (int i = 0; i < 8; i++) __builtin_prefetch(rows[i]), __builtin_prefetch(rows[i] + 64);
        return;
    }
    for (int i = 0; i < 16; i++) {
        __builtin_prefetch(*rows + from);
        from += 64;
        if (from == bytes) from = 0, rows++;
    }
}

INLINE void ask_for_lines(const call *c, const space *s, int64_t from) {
    for (int64_t at = from; at < c->row_bytes; at += 64)
        for (int i = 0; i < STEP; i++) __builtin_prefetch(s->ahead_of[i] + at);
}

static void scores_of_many(const call *c, space *s, int64_t rows, int64_t key) {
    ask_for_lines(c, s, c->dim); /* stage_keys has asked for the first half */
    for (int64_t r = 0; r < rows; r += 16) {
        const bf16 *query = (const bf16 *)s->query + r * c->dim;
        float *scores = s->scores + r * ROW + key;
        shape_many(s, rows - r < 16 ? (int)(rows - r) : 16);
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t d = 0; d < c->dim; d += 32) {
            const float *keys = s->stage + d / 2 * STEP;
            amx_load(4, query + d, 2 * c->dim);
            amx_load(6, keys, 4 * STEP);
            _tile_dpbf16ps(0, 4, 6);
            amx_load(7, keys + 16, 4 * STEP);
            _tile_dpbf16ps(1, 4, 7);
            amx_load(6, keys + 32, 4 * STEP);
            _tile_dpbf16ps(2, 4, 6);
            amx_load(7, keys + 48, 4 * STEP);
            _tile_dpbf16ps(3, 4, 7);
        }
        _tile_stored(0, scores, 4 * ROW);
        _tile_stored(1, scores + 16, 4 * ROW);
        _tile_stored(2, scores + 32, 4 * ROW);
        _tile_stored(3, scores + 48, 4 * ROW);
    }
}

/* The first FEW_ROWS queries as [dim / 2][FEW_ROWS] words. */
INLINE void turn_query(const call *c, const space *s, int64_t rows) {
    for (int64_t w = 0; w < c->dim / 2; w++)
        for (int64_t r = 0; r < rows; r++)
            memcpy(s->turned + w * FEW_ROWS + r, (const bf16 *)s->query + r * c->dim + 2 * w, 4);
}

/* 16 keys' scores with 4 rows, [16][4], to each row's. */
INLINE void turn_scores(const float *from, int64_t rows, float *to) {
    const __m512i first = _mm512_set_epi32(29, 25, 21, 17, 13, 9, 5, 1, 28, 24, 20, 16, 12, 8, 4, 0);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(2));
    vf a = vf_load(from), b = vf_load(from + 16), c = vf_load(from + 32), d = vf_load(from + 48);
    vf low = _mm512_permutex2var_ps(a, first, b), high = _mm512_permutex2var_ps(c, first, d);
    vf_store(to, _mm512_shuffle_f32x4(low, high, 0x44));
    if (rows > 1) vf_store(to + ROW, _mm512_shuffle_f32x4(low, high, 0xee));
    low = _mm512_permutex2var_ps(a, second, b), high = _mm512_permutex2var_ps(c, second, d);
    if (rows > 2) vf_store(to + 2 * ROW, _mm512_shuffle_f32x4(low, high, 0x44));
    if (rows > 3) vf_store(to + 3 * ROW, _mm512_shuffle_f32x4(low, high, 0xee));
}

static void scores_of_few(const call *c, space *s, int64_t rows, int64_t key) {
    float made[STEP * FEW_ROWS];
    const char *keys[4];
    int64_t stride[4];
    for (int i = 0; i < 4; i++)
        keys[i] = rows_in_line(c, s, 16 * i, (char *)s->stage + 16 * i * c->row_bytes, stride + i);
    shape_few(s, (int)rows);
    for (int i = 0; i < 4; i += 2) {
        float *to = made + 16 * FEW_ROWS * i;
        _tile_zero(0);
        _tile_zero(1);
        for (int64_t at = 0; at < c->row_bytes; at += 64) {
            amx_load(6, s->turned + at / 4 * FEW_ROWS, 4 * FEW_ROWS);
            amx_load(4, keys[i] + at, stride[i]);
            _tile_dpbf16ps(0, 4, 6);
            ask_in_order(c, s->ahead_of + 16 * i, at);
            amx_load(5, keys[i + 1] + at, stride[i + 1]);
            _tile_dpbf16ps(1, 5, 6);
            ask_in_order(c, s->ahead_of + 16 * i + 16, at);
        }
        _tile_stored(0, to, 4 * FEW_ROWS);
        _tile_stored(1, to + 16 * FEW_ROWS, 4 * FEW_ROWS);
    }
    for (int i = 0; i < 4; i++)
        turn_scores(made + 16 * FEW_ROWS * i, rows, s->scores + key + 16 * i);
}

/* The addresses of a step's 64 values, 16 at a time. */
INLINE void values_in_line(const call *c, const space *s, const char **values, int64_t *stride) {
    for (int i = 0; i < 4; i++)
        values[i] = rows_in_line(c, s, 16 * i, (char *)s->stage + 16 * i * c->row_bytes, stride + i);
}

static void values_of_few(const call *c, space *s, int64_t rows, int64_t key) {
    const char *values[4], *weights = (const char *)(s->scores + key);
    int64_t stride[4];
    values_in_line(c, s, values, stride);
    shape_few(s, (int)rows);
    for (int64_t d = 0; d < c->dim; d += 32) {
        float *out = s->out + d;
        amx_load(2, out, 4 * c->dim);
        amx_load(3, out + 16, 4 * c->dim);
        for (int i = 0; i < 4; i++) {
            amx_load(4, values[i] + 2 * d, stride[i]);
            amx_load(7, weights + 64 * i + 2, 4 * ROW);
            _tile_dpbf16ps(2, 7, 4);
            ask_in_order(c, s->ahead_of + 16 * i, 2 * d);
            amx_load(7, weights + 64 * i, 4 * ROW);
            _tile_dpbf16ps(3, 7, 4);
        }
        _tile_stored(2, out, 4 * c->dim);
        _tile_stored(3, out + 16, 4 * c->dim);
    }
}

static void values_of_many(const call *c, space *s, int64_t rows, int64_t key) {
    const char *values[4];
    int64_t stride[4];
    values_in_line(c, s, values, stride);
    for (int64_t r = 0; r < rows; r += 16) {
        const char *weights = (const char *)(s->scores + r * ROW + key);
        shape_many(s, rows - r < 16 ? (int)(rows - r) : 16);
        for (int64_t d = 0; d < c->dim; d += 64) {
            float *out = s->out + r * c->dim + d;
            amx_load(0, out, 4 * c->dim);
            amx_load(1, out + 16, 4 * c->dim);
            amx_load(2, out + 32, 4 * c->dim);
            amx_load(3, out + 48, 4 * c->dim);
            for (int i = 0; i < 4; i++) {
                amx_load(4, weights + 64 * i + 2, 4 * ROW);
                amx_load(6, values[i] + 2 * d, stride[i]);
                _tile_dpbf16ps(0, 4, 6);
                if (!r) ask_in_order(c, s->ahead_of + 16 * i, 2 * d);
                amx_load(5, weights + 64 * i, 4 * ROW);
                _tile_dpbf16ps(1, 5, 6);
                amx_load(7, values[i] + 2 * d + 64, stride[i]);
                _tile_dpbf16ps(2, 4, 7);
                if (!r) ask_in_order(c, s->ahead_of + 16 * i, 2 * d + 64);
                _tile_dpbf16ps(3, 5, 7);
            }
            _tile_stored(0, out, 4 * c->dim);
            _tile_stored(1, out + 16, 4 * c->dim);
            _tile_stored(2, out + 32, 4 * c->dim);
            _tile_stored(3, out + 48, 4 * c->dim);
        }
    }
}

INLINE void amx_values(const call *c, space *s, int64_t rows, int64_t key) {
    if (rows <= FEW_ROWS) values_of_few(c, s, rows, key);
    else values_of_many(c, s, rows, key);
}

/* 32 outputs that lie apart, of them the first or the second 16 in order. */
INLINE vf outputs_in_order(const float *from, int second) {
    const __m512i first = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i order = _mm512_add_epi32(first, _mm512_set1_epi32(second ? 8 : 0));
    return _mm512_permutex2var_ps(vf_load(from), order, vf_load(from + 16));
}
#else
INLINE int takes_amx(const call *c) { return (void)c, 0; }
INLINE void amx_end(const space *s) { (void)s; }
INLINE void stay_awake(const space *s) { (void)s; }
INLINE void turn_query(const call *c, const space *s, int64_t rows) { (void)c, (void)s, (void)rows; }
INLINE void scores_of_many(const call *c, space *s, int64_t rows, int64_t key) {
    (void)c, (void)s, (void)rows, (void)key;
}
#define scores_of_few scores_of_many
#define amx_values scores_of_many
INLINE vf outputs_in_order(const float *from, int second) { return (void)second, vf_load(from); }
#endif

#endif
