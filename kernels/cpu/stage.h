/* Brings keys and values of a few tokens from their pages into the form that products take.
 *
 * Owns what one call of attention is given and the scratch of a thread; attention.c computes.
 */
#ifndef RK_STAGE_H
#define RK_STAGE_H

#include "ops.h"
#include "plan.h"
#include "vec.h"

#define STEP 64         /* keys staged at a time */
#define ROW (SPLIT + 16) /* floats of a row of scores: rows a power of two apart crowd a cache */
#define HEADS_ROOM 8192 /* numbers of queries, up to which the heads of an item take turns */
#define FEW_ROWS 4       /* whose scores the matrix unit makes with keys as they lie */

typedef struct {
    const void *q;
    int64_t q_stride;
    void *out;
    const void *k_pages, *v_pages;
    const rk_plan *plan;
    int64_t dim, group, num_pages;
    int half_q, pairs, amx;     /* pairs: bfloat16 products; amx: by the matrix unit */
    int type;                   /* of the pages' elements; without pairs they become float32 */
    int64_t row_bytes;          /* of a token and head in a page */
    float scale, softcap;
    int32_t window;
    /* Of pages in few bits, which become float32: 0 bits for all others. */
    const void *k_codes, *v_codes;
    int64_t num_codes;          /* pages of them */
    int bits, plain_type;       /* k_pages and v_pages are plain ones of that type */
} call;

/* What lasts from split to split of an item's head. */
typedef struct {
    float *query;               /* [rows][dim], or bfloat16 */
    float *run;                 /* [rows][dim], folded */
    float *run_top, *run_sum;   /* [rows] */
} lasting;

/* Scratch of one thread; rows are members times group. */
typedef struct {
    lasting all;                /* of the first head of those that take turns; the others follow */
    float *scores;              /* [rows][ROW] */
    int32_t *from, *to;         /* [rows]: which keys of the split a row sees */
    float *query;               /* as in `lasting`, of the head at hand: see at_head */
    float *stage;               /* keys [dim][STEP] or values [STEP][dim] */
    float *out, *run;           /* [rows][dim]: of the split, and folded */
    float *top, *sum, *run_top, *run_sum; /* [rows] */
    uint32_t *turned;           /* [dim / 2][FEW_ROWS]: the query's words, for the matrix unit */
    float *zeros;               /* a key or value past the end, [dim] */
    float *wide;                /* [STEP][dim]: rows of 8 or fewer bits as floats */
    const char *few[STEP / FEW_PAGE]; /* the pages of row_of that are in few bits, or NULL */
    const char *row_of[STEP];   /* the keys or values of a step */
    const char *ahead_of[STEP]; /* those of the step that follows, asked for meanwhile */
    int later;                  /* whether softmax asks for those, so that memory does not rest */
    const rk_item *next;        /* whose split follows in this piece, or NULL, of which head, which */
    int64_t next_head, next_split;
    int shape;                  /* that the unit's registers have, or 0 */
} space;

INLINE int has_halves(const call *c) { return c->type == PAGES_F16 || c->type == PAGES_BF16; }

INLINE size_t carve(const call *c, space *s, char *memory, int64_t rows) {
    int64_t dim = c->dim;
    int64_t room = rows * dim > HEADS_ROOM ? rows * dim : HEADS_ROOM, all_rows = room / dim + 1;
    size_t at = 0;
#define TAKE(field, count) (s->field = (void *)(memory + at), at += ((size_t)(count) * 4 + 63) / 64 * 64)
    TAKE(scores, rows * ROW);
    TAKE(from, rows);
    TAKE(to, rows);
    TAKE(all.query, room);
    TAKE(all.run, room);
    TAKE(all.run_top, all_rows);
    TAKE(all.run_sum, all_rows);
    TAKE(turned, c->amx ? FEW_ROWS * dim / 2 : 0);
    TAKE(stage, dim * STEP);
    TAKE(out, rows * dim);
    TAKE(top, rows);
    TAKE(sum, rows);
    TAKE(zeros, dim);
    TAKE(wide, c->bits ? (STEP + 2) * dim : c->type == PAGES_I8 ? STEP * dim : 0);
#undef TAKE
    return at;
}

/* Have the i-th of the heads that take turns, of an item with so many rows. */
INLINE void at_head(const call *c, space *s, int64_t rows, int64_t i) {
    s->query = s->all.query + i * rows * c->dim;
    s->run = s->all.run + i * rows * c->dim;
    s->run_top = s->all.run_top + i * rows;
    s->run_sum = s->all.run_sum + i * rows;
}

/* Addresses of the STEP rows of keys or values from token `first`, zeros from `end` on. */
INLINE void find_rows(const call *c, const space *s, const char *pages, int32_t row, int64_t head,
                      int64_t first, int64_t end, const char **to) {
    const rk_plan *plan = c->plan;
    const int32_t *table = plan->kv_indices + plan->kv_indptr[row];
    int64_t size = plan->page_size, width = c->row_bytes;
    int64_t page = first / size, offset = first % size, i = 0;
    int64_t count = end - first < STEP ? end - first : STEP;
    while (i < count) {
        const char *at = pages + ((table[page++] * plan->kv_heads + head) * size + offset) * width;
        int64_t stop = i + size - offset < count ? i + size - offset : count;
        for (; i < stop; i++, at += width) to[i] = at;
        offset = 0;
    }
    for (; i < STEP; i++) to[i] = (const char *)s->zeros;
}

/* Rows of 8 bits to float32, and their addresses to those. */
static void widen_rows(const call *c, space *s) {
    if (c->type != PAGES_I8) return;
    for (int64_t i = 0; i < STEP; i++) {
        const char *row = s->row_of[i];
        float *to = s->wide + i * c->dim, scale;
        if (row == (const char *)s->zeros) continue;
        memcpy(&scale, row + c->dim, 4);
        for (int64_t d = 0; d < c->dim; d += 16)
            vf_store(to + d, vf_mul(vf_load_i8((const int8_t *)row + d), vf_set(scale)));
        s->row_of[i] = (const char *)to;
    }
}

/* Ask for 16 rows' bytes: a little for each little that is used, since many at once wait for one
 * another, and pages lie anywhere, so that the machine's own prefetching ends with each. */
INLINE void ask_for(const char *const *rows, int64_t at) {
    for (int i = 0; i < 16; i++) __builtin_prefetch(rows[i] + at);
}

/* Likewise for lines of STEP rows by their numbers: the first lines of all, then the second. */
INLINE void ask_for_some(const char *const *rows, int64_t first, int64_t end) {
    for (int64_t i = first; i < end; i++) __builtin_prefetch(rows[i % STEP] + i / STEP * 64);
}

#if RK_ISA == 512
/* 16 rows of 16 words, from rows[i] + at bytes, into columns. */
INLINE void turned(const char *const *rows, int64_t at, __m512i *to) {
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_si512(rows[i] + at);
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        __m512i low = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88);
        __m512i high = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
        __m512i low2 = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
        __m512i high2 = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
        to[i] = _mm512_shuffle_i32x4(low, low2, 0x88);
        to[i + 4] = _mm512_shuffle_i32x4(high, high2, 0x88);
        to[i + 8] = _mm512_shuffle_i32x4(low, low2, 0xdd);
        to[i + 12] = _mm512_shuffle_i32x4(high, high2, 0xdd);
    }
}

/* A column of 16 words, or of halves of either kind as float32 in two columns. */
INLINE void put_column(__m512i x, const int halves, const int is_f16, float *to) {
    if (!halves) {
        _mm512_storeu_si512(to, x);
    } else if (is_f16) {
        vf_store(to, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x)));
        vf_store(to + STEP, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(x, 16))));
    } else {
        _mm512_storeu_si512(to, _mm512_slli_epi32(x, 16));
        _mm512_storeu_si512(to + STEP, _mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000u)));
    }
}

/* 16 rows of 16 words, from rows[i] + at bytes, into columns STEP apart. */
INLINE void turn(const char *const *rows, int64_t at, const int halves, const int is_f16, float *to) {
    __m512i columns[16];
    turned(rows, at, columns);
    for (int i = 0; i < 16; i++)
        put_column(columns[i], halves, is_f16, to + (halves ? 2 : 1) * i * STEP);
}
#elif RK_ISA == 256
/* 8 rows of 8 words, from rows[i] + at bytes, into columns. */
INLINE void turned(const char *const *rows, int64_t at, __m256i *to) {
    for (int side = 0; side < 2; side++, at += 16, to += 4) {
        __m256i a[4], b[4];
        for (int i = 0; i < 4; i++) {
            __m128i upper = _mm_loadu_si128((const __m128i *)(rows[i + 4] + at));
            a[i] = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(rows[i] + at)));
            a[i] = _mm256_inserti128_si256(a[i], upper, 1);
        }
        for (int i = 0; i < 4; i += 2) {
            b[i] = _mm256_unpacklo_epi32(a[i], a[i + 1]);
            b[i + 1] = _mm256_unpackhi_epi32(a[i], a[i + 1]);
        }
        to[0] = _mm256_unpacklo_epi64(b[0], b[2]), to[1] = _mm256_unpackhi_epi64(b[0], b[2]);
        to[2] = _mm256_unpacklo_epi64(b[1], b[3]), to[3] = _mm256_unpackhi_epi64(b[1], b[3]);
    }
}

INLINE void put_column(__m256i x, const int halves, const int is_f16, float *to) {
    __m256i even = x, odd = _mm256_and_si256(x, _mm256_set1_epi32((int)0xffff0000u));
    if (is_f16) { /* the lower halves to the lower 8 bytes of each lane, and the lanes together */
        const __m256i places = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,
                                                0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
        x = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(x, places), 0xd8);
        even = _mm256_castps_si256(_mm256_cvtph_ps(_mm256_castsi256_si128(x)));
        odd = _mm256_castps_si256(_mm256_cvtph_ps(_mm256_extracti128_si256(x, 1)));
    } else if (halves) {
        even = _mm256_slli_epi32(x, 16);
    }
    _mm256_store_si256((__m256i *)to, even);
    if (halves) _mm256_store_si256((__m256i *)(to + STEP), odd);
}

/* Few of the loads that are under way at once fit a core: in between, lines of the rows ahead are asked
 * for one by one, from the number `line` on. */
INLINE void turn(const char *const *rows, int64_t at, const int halves, const int is_f16, float *to,
                 const char *const *ahead, int64_t line) {
    for (int block = 0; block < 4; block++) {
        ask_for_some(ahead, line + 2 * block, line + 2 * block + 2);
        __m256i columns[8];
        int side = block / 2 * 8, word = block % 2 * 8;
        turned(rows + side, at + 4 * word, columns);
        for (int i = 0; i < 8; i++)
            put_column(columns[i], halves, is_f16, to + (halves ? 2 : 1) * (word + i) * STEP + side);
    }
}
#else
INLINE void turn(const char *const *rows, int64_t at, const int halves, const int is_f16, float *to) {
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < (halves ? 32 : 16); j++) {
            if (!halves) memcpy(to + j * STEP + i, rows[i] + at + 4 * j, 4);
            else if (is_f16) to[j * STEP + i] = f16_to_float(((const f16 *)(rows[i] + at))[j]);
            else to[j * STEP + i] = bf16_to_float(((const bf16 *)(rows[i] + at))[j]);
        }
}
#endif

/* Keys to [dim][STEP] float32, or with pairs or as words to [dim / 2][STEP] pairs. dim is a multiple of 16, of
 * 16-bit pages at least 32. */
INLINE void stage_some_keys(const call *c, space *s, const int halves, const int is_f16) {
    int64_t words = has_halves(c) ? c->dim / 2 : c->dim;
    for (int64_t next = 0; next < words; next += 16) {
        int64_t word = next + 16 <= words ? next : words - 16; /* the last may overlap */
        for (int side = 0; side < STEP; side += 16) {
            float *to = s->stage + (halves ? 2 : 1) * word * STEP + side;
#if RK_ISA == 256
            turn(s->row_of + side, word * 4, halves, is_f16, to, s->ahead_of, 2 * next + side / 2);
#else
            turn(s->row_of + side, word * 4, halves, is_f16, to);
            if (2 * word < words) ask_for(s->ahead_of + side, word * 4);
#endif
        }
    }
}

INLINE void stage_keys(const call *c, space *s, int as_words) {
    if (!has_halves(c) || c->pairs || as_words) stage_some_keys(c, s, 0, 0);
    else if (c->type == PAGES_F16) stage_some_keys(c, s, 1, 1);
    else stage_some_keys(c, s, 1, 0);
}

#if RK_DPBF16
/* Which halves of two rows make pairs: of the first 16 columns, and of the second. */
INLINE __m512i first_pairs(void) {
    return _mm512_set_epi32(0x002f000f, 0x002e000e, 0x002d000d, 0x002c000c, 0x002b000b, 0x002a000a,
                            0x00290009, 0x00280008, 0x00270007, 0x00260006, 0x00250005, 0x00240004,
                            0x00230003, 0x00220002, 0x00210001, 0x00200000);
}
INLINE __m512i second_pairs(void) {
    return _mm512_add_epi16(first_pairs(), _mm512_set1_epi16(16));
}
#endif

/* Values to [STEP][dim] float32, or with pairs to [STEP / 2][dim] pairs of following tokens. */
INLINE void stage_values(const call *c, space *s) {
#if RK_DPBF16
    const __m512i low_pairs = first_pairs(), high_pairs = second_pairs();
#endif
    for (int64_t i = 0; i < STEP; i++) {
        for (int64_t at = 0; at < c->dim * (has_halves(c) ? 2 : 4); at += 64)
            __builtin_prefetch(s->ahead_of[i] + at);
        if (!has_halves(c)) {
            memcpy(s->stage + i * c->dim, s->row_of[i], (size_t)c->dim * 4);
            continue;
        }
        const bf16 *row = (const bf16 *)s->row_of[i];
        if (!c->pairs) {
            for (int64_t d = 0; d < c->dim; d += 16)
                vf_store(s->stage + i * c->dim + d,
                         c->type == PAGES_F16 ? vf_load_f16(row + d) : vf_load_bf16(row + d));
            continue;
        }
#if RK_DPBF16
        if (i % 2) continue;
        const bf16 *next = (const bf16 *)s->row_of[i + 1];
        int64_t d = 0;
        for (; d + 32 <= c->dim; d += 32) {
            __m512i a = _mm512_loadu_si512(row + d), b = _mm512_loadu_si512(next + d);
            float *to = s->stage + i / 2 * c->dim + d;
            _mm512_storeu_si512(to, _mm512_permutex2var_epi16(a, low_pairs, b));
            _mm512_storeu_si512(to + 16, _mm512_permutex2var_epi16(a, high_pairs, b));
        }
        for (; d < c->dim; d += 16) {
            __m512i a = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(row + d)));
            __m512i b = _mm512_castps_si512(vf_load_bf16(next + d));
            _mm512_storeu_si512(s->stage + i / 2 * c->dim + d, _mm512_or_si512(a, b));
        }
#endif
    }
}

#endif
