/* Products of a few rows with keys or values, in tiles that the registers of a machine hold.
 *
 *   rows x columns      sums      each step: the columns of a key's dimension, or of a value
 *   3    x 4 registers  12        3 numbers of the rows are held, the columns come one by one
 *   6    x 2 registers  12        2 columns are held, the numbers of the rows come one by one
 *
 * How rows are gathered to tiles changes no bit: every sum takes the same products in the same order.
 */
#ifndef RK_TILE_H
#define RK_TILE_H

#include "stage.h"

/* What a register holds: a vf, or of AVX2, which has 16 registers, half of one. */
#if RK_ISA == 256
#define LANE 8
#define MOST_ROWS 6 /* of a tile */
#define COLUMNS(rows) ((rows) > 3 ? 2 : (rows) > 1 ? 4 : 8)
typedef __m256 vr;
INLINE vr vr_set(float x) { return _mm256_set1_ps(x); }
INLINE vr vr_load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void vr_store(float *p, vr x) { _mm256_storeu_ps(p, x); }
INLINE vr vr_fma(vr a, vr b, vr c) { return _mm256_fmadd_ps(a, b, c); }
/* Constants from memory: where tiles take all registers, a constant in one costs a sum its own. */
static const uint32_t uppers[8] = {0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u,
                                   0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u};
static const int8_t places[32] = {-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7,
                                  -1, -1, 8, 9, -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15};
INLINE vr vr_load_bf16(const bf16 *p) {
    __m256i x = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
    __asm__("vpshufb %1, %0, %0" : "+x"(x) : "m"(places));
    return _mm256_castsi256_ps(x);
}
INLINE vr vr_load_lower(const float *p) { /* of words that are two bfloat16 */
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i *)p), 16));
}
INLINE vr vr_load_upper(const float *p) {
    vr x = _mm256_loadu_ps(p);
    __asm__("vandps %1, %0, %0" : "+x"(x) : "m"(uppers));
    return x;
}
INLINE vr vr_load_f16(const f16 *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
INLINE vr vr_load_i8(const int8_t *p, vr scale) {
    __m256i x = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(x), scale);
}
#else
#define LANE 16
#define MOST_ROWS 4
#define COLUMNS(rows) 4
typedef vf vr;
INLINE vr vr_set(float x) { return vf_set(x); }
INLINE vr vr_load(const float *p) { return vf_load(p); }
INLINE void vr_store(float *p, vr x) { vf_store(p, x); }
INLINE vr vr_fma(vr a, vr b, vr c) { return vf_fma(a, b, c); }
INLINE vr vr_load_bf16(const bf16 *p) { return vf_load_bf16(p); }
/* Only AVX2 meets keys as words (run_split): these are for the compiler. */
INLINE vr vr_load_lower(const float *p) { return vf_load(p); }
INLINE vr vr_load_upper(const float *p) { return vf_load(p); }
INLINE vr vr_load_f16(const f16 *p) { return vf_load_f16(p); }
INLINE vr vr_load_i8(const int8_t *p, vr scale) { return vf_mul(vf_load_i8(p), scale); }
#endif

/* The rows of the next tile. */
INLINE int rows_of_tile(int64_t left) {
#if RK_ISA == 256
    if (left == 7 || left == 8) return 4;
    if (left >= 6) return 6;
    return left == 5 ? 3 : (int)left;
#else
    return left < 4 ? (int)left : 4;
#endif
}

/* A loaded vector as one that is not loaded again for each use, nor, of AVX2, loaded earlier than
 * those before it: no register is left for that. */
INLINE vr held(vr x) {
#if RK_ISA == 512
    __asm__("" : "+v"(x));
#elif RK_ISA == 256
    __asm__ volatile("" : "+x"(x));
#endif
    return x;
}

INLINE uint32_t word_at(const void *p, int64_t i) {
    uint32_t word;
    memcpy(&word, (const char *)p + 4 * i, 4);
    return word;
}

/* What staged numbers are: float32, pairs of bfloat16 that are multiplied so, or the lower or upper
 * bfloat16 of each word. */
enum { PLAIN, PAIRS, LOWER, UPPER };

/* sum + a * b in each lane. */
INLINE vr fused(vr sum, uint32_t a, vr b, const int form) {
#if RK_DPBF16
    if (form == PAIRS)
        return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32((int)a),
                                (__m512bh)_mm512_castps_si512(b));
#endif
    float x;
    (void)form;
    memcpy(&x, &a, 4);
    return vr_fma(vr_set(x), b, sum);
}

INLINE vr column_at(const float *staged, const int form) {
    return form == LOWER ? vr_load_lower(staged) : form == UPPER ? vr_load_upper(staged) : vr_load(staged);
}

/* One step of a tile: word i of each row, `apart` words from row to row, with `columns` registers. */
INLINE void step_of_tile(const int rows, const int columns, const int form, const float *numbers,
                         int64_t apart, int64_t i, const float *staged, vr *sum) {
#if RK_ISA == 256
    if (rows < columns) {
        vr x[MOST_ROWS];
        for (int r = 0; r < rows; r++) x[r] = held(vr_set(numbers[r * apart + i]));
        UNROLL
        for (int n = 0; n < columns; n++) {
            vr column = held(column_at(staged + LANE * n, form));
            UNROLL
            for (int r = 0; r < rows; r++)
                sum[r * columns + n] = vr_fma(x[r], column, sum[r * columns + n]);
        }
        return;
    }
#endif
    vr column[8];
    for (int n = 0; n < columns; n++) column[n] = held(column_at(staged + LANE * n, form));
    UNROLL
    for (int r = 0; r < rows; r++) {
        uint32_t x = word_at(numbers, r * apart + i);
        UNROLL
        for (int n = 0; n < columns; n++)
            sum[r * columns + n] = fused(sum[r * columns + n], x, column[n], form);
    }
}

/* Scores of `rows` rows with the keys of a tile, staged in `words` words each, of which each is two
 * numbers where the form is LOWER, for both halves. Of the rows ahead, as many lines as `asked` for each
 * word of a step are asked for, from their middle on: a share with each tile of keys, this is the one
 * from `side` on. */
INLINE void score_tile(const int rows, const int form, const float *query, int64_t words,
                       const float *stage, float *scores, const char *const *ahead,
                       const int asked, int64_t side) {
    const int columns = COLUMNS(rows);
    vr sum[16];
    for (int i = 0; i < columns * rows; i++) sum[i] = vr_set(0);
    for (int64_t w = 0; w < words; w++) {
        const float *staged = stage + w * STEP;
        if (ahead) {
            const int tiles = STEP / LANE / COLUMNS(rows);
            int64_t at = side / (LANE * COLUMNS(rows)) * words + w, half = asked * words;
            ask_for_some(ahead, half + asked * at / tiles, half + asked * (at + 1) / tiles);
        }
        if (form == LOWER) {
            step_of_tile(rows, columns, LOWER, query, 2 * words, 2 * w, staged, sum);
            step_of_tile(rows, columns, UPPER, query, 2 * words, 2 * w + 1, staged, sum);
        } else {
            step_of_tile(rows, columns, form, query, words, w, staged, sum);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < columns; n++)
            vr_store(scores + r * ROW + LANE * n, sum[r * columns + n]);
}

/* Add `columns` registers of the staged values, weighted, to `rows` rows of out; `steps` weights
 * (STEP, or half). */
INLINE void value_tile(const int rows, const int columns, const int form, const float *weights,
                       const float *stage, int64_t dim, float *out) {
    const int steps = form == PAIRS ? STEP / 2 : STEP;
    vr sum[16];
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < columns; n++) sum[r * columns + n] = vr_load(out + r * dim + LANE * n);
    for (int j = 0; j < steps; j++)
        step_of_tile(rows, columns, form, weights, ROW, j, stage + j * dim, sum);
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < columns; n++) vr_store(out + r * dim + LANE * n, sum[r * columns + n]);
}

INLINE void score_rows(const int rows, const int form, const call *c, const space *s, int64_t r,
                       int64_t key) {
    int64_t words = form == PLAIN ? c->dim : c->dim / 2, width = form == PAIRS ? words : c->dim;
    const int narrow = c->bits || c->type == PAGES_I8; /* asked for by stage_keys */
    for (int64_t side = 0; side < STEP; side += LANE * COLUMNS(rows))
        score_tile(rows, form, s->query + r * width, words, s->stage + side,
                   s->scores + r * ROW + key + side, r || narrow ? NULL : s->ahead_of,
                   form == PLAIN && has_halves(c) ? 1 : 2, side);
}

INLINE void value_rows(const int rows, const int form, const call *c, const space *s, int64_t r,
                       int64_t key) {
    const int wide = LANE * COLUMNS(rows), least = 16 / LANE;
    const float *weights = s->scores + r * ROW + (form == PAIRS ? key / 2 : key);
    float *out = s->out + r * c->dim;
    int64_t d = 0;
    for (; d + wide <= c->dim; d += wide)
        value_tile(rows, COLUMNS(rows), form, weights, s->stage + d, c->dim, out + d);
    for (; d < c->dim; d += 16)
        value_tile(rows, least, form, weights, s->stage + d, c->dim, out + d);
}

/* The staged keys' scores to s->scores, or the staged values to s->out, of all rows. */
#define RK_BY_TILES(name, of_rows)                                                             \
    INLINE void name(const int form, const call *c, const space *s, int64_t rows, int64_t key) { \
        for (int64_t r = 0; r < rows;) {                                                       \
            int together = rows_of_tile(rows - r);                                             \
            switch (together) {                                                                \
            case 1: of_rows(1, form, c, s, r, key); break;                                    \
            case 2: of_rows(2, form, c, s, r, key); break;                                    \
            case 3: of_rows(3, form, c, s, r, key); break;                                    \
            case 4: of_rows(4, form, c, s, r, key); break;                                    \
            default: of_rows(MOST_ROWS, form, c, s, r, key);                                  \
            }                                                                                  \
            r += together;                                                                     \
        }                                                                                      \
    }
RK_BY_TILES(all_scores, score_rows)
RK_BY_TILES(all_values, value_rows)

#endif
