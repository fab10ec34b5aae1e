/* Products with packed weights whose inputs are bfloat16, by Intel's matrix unit (AMX).
 *
 * Weights become bfloat16 where they meet inputs, in a core's nearest cache: each is the dequantised
 * number, rounded to float16 first, then ties away from zero. Sums are float32 and stay in the unit's
 * registers: nothing is left for vectors but to make weights, once for all rows.
 *
 *   weights   pair (32 outputs), group (32 columns), each half of the pair: a unit of 16 outputs
 *               codes   of 8 bits, signed: of 2 outputs a word of 16 bits for each column, the first
 *                       one's in its lower half
 *                       of 4 bits: of 4 outputs a word for each column, turned left by one bit: the
 *                       first one's in bits 1 to 4, the last one's in 13 to 15 and 0
 *               scales  halves: 16 of a group, then 16 lows, or 16 of the second half where a scale
 *                       has 16 columns; times a power of two, so that all that an output's codes
 *                       stand for is within 2^15, and scales of 8 bits divided by 256
 *   factors   float32 of each output: what its sums are multiplied by
 *   inputs    span (16 rows), group, pair of columns: two numbers of each row, times 2^32; the rows
 *             of a call with fewer than 16 lie as close as they come, those of longer ones have
 *             zeros to 16
 *
 * The instruction adds, of a group and an output, the products of even columns one after the other,
 * those of odd ones, both sums, and that to what it had: the same whatever the number of rows.
 * Numbers below 2^-126 count as zero: of inputs those below 2^-158, of weights those below 2^-28 of
 * an output's largest. Source of the instruction: as in amx.h.
 */
#include "amx.h"
#include "packed.h"

#if RK_AMX
#include "transpose.h"

#define UNIT 1024         /* bytes: 16 outputs x 32 columns of weights, or 16 sums of 16 outputs */
#define SLOTS 8           /* units that are made ahead of their products */
#define SECTION 10        /* groups at most, whose weights stay in a near cache while all spans meet them */
#define MOST_SPANS 64     /* of a section's sums that wait */

/* Where a pair lies, and what is asked for meanwhile. */
typedef struct {
    const uint8_t *code;
    const char *scale;
    ahead next;
} source;

/* Halves as bfloat16 of 2^-112 times each, ties away from zero: a sign and 3 bits of nothing, their 5
 * of exponent, and 7 more. */
INLINE __m512i as_bfloat16(__m512h w) {
    __m512i eighth = _mm512_mulhrs_epi16(_mm512_castph_si512(w), _mm512_set1_epi16(1 << 12));
    return _mm512_and_si512(eighth, _mm512_set1_epi16((short)0x8fff));
}

#define TWICE(n) (n) - zero, (n) - zero

/* The next 16 outputs' weights of a group, of 4 bits. The 16 weights that an output can have lie in
 * one register beside those of the next output, and are looked up. */
INLINE void make_few(const int has_low, const int zero, source *from, char *to) {
    const __m512h code = _mm512_setr_ph(
        TWICE(0), TWICE(1), TWICE(2), TWICE(3), TWICE(4), TWICE(5), TWICE(6), TWICE(7), TWICE(8),
        TWICE(9), TWICE(10), TWICE(11), TWICE(12), TWICE(13), TWICE(14), TWICE(15));
    const __m512i second = _mm512_set1_epi16(0x0101);
    const int32_t *scale = (const int32_t *)from->scale; /* of two outputs each */
    UNROLL
    for (int four = 0; four < 4; four++, to += 256) {
        __m512i words = _mm512_loadu_si512(from->code + four * 64), table[2];
        __m512i of_first = _mm512_andnot_si512(second, words);
        __m512i of_second = _mm512_or_si512(second, _mm512_shldi_epi16(words, words, 12));
        UNROLL
        for (int i = 0; i < 2; i++) {
            __m512h d = _mm512_castsi512_ph(_mm512_set1_epi32(scale[2 * four + i]));
            if (!has_low) {
                table[i] = as_bfloat16(_mm512_mul_ph(code, d));
                continue;
            }
            __m512h low = _mm512_castsi512_ph(_mm512_set1_epi32(scale[8 + 2 * four + i]));
            table[i] = as_bfloat16(_mm512_fmadd_ph(code, d, low));
        }
        _mm512_store_si512(to, _mm512_permutexvar_epi16(of_first, table[0]));
        _mm512_store_si512(to + 64, _mm512_permutexvar_epi16(of_second, table[0]));
        of_first = _mm512_srli_epi16(of_first, 8);
        of_second = _mm512_srli_epi16(of_second, 8);
        _mm512_store_si512(to + 128, _mm512_permutexvar_epi16(of_first, table[1]));
        _mm512_store_si512(to + 192, _mm512_permutexvar_epi16(of_second, table[1]));
    }
    from->code += 256;
    from->scale += has_low ? 64 : 32;
}

/* The same of 8 bits: codes are taken as the numbers times 256 that they are in the upper half of a
 * word. */
INLINE void make_many(const int group, const int has_low, source *from, char *to) {
    const _Float16 *scale = (const _Float16 *)from->scale;
    UNROLL
    for (int r = 0; r < 16; r++) {
        __m512i words = _mm512_loadu_si512(from->code + r / 2 * 64);
        __m512i upper = r % 2 ? _mm512_and_si512(words, _mm512_set1_epi16((short)0xff00))
                              : _mm512_slli_epi16(words, 8);
        __m512h code = _mm512_cvtepi16_ph(upper), d = _mm512_set1_ph(scale[r]), w;
        if (has_low) w = _mm512_fmadd_ph(code, d, _mm512_set1_ph(scale[16 + r]));
        else w = _mm512_mul_ph(code, d);
        if (group == 16) w = _mm512_mask_mul_ph(w, 0xffff0000, code, _mm512_set1_ph(scale[16 + r]));
        _mm512_store_si512(to + 64 * r, as_bfloat16(w));
    }
    from->code += 512;
    from->scale += has_low || group == 16 ? 64 : 32;
}

INLINE void make_unit(const int bits, const int group, const int has_low, const int zero,
                      source *from, char *to) {
    if (bits == 4) make_few(has_low, zero, from, to);
    else make_many(group, has_low, from, to);
}

/* Sums in 0 to 3: span 0 with the first and the second half of the pair, then span 1. Weights in 4 and
 * 5, inputs in 6 and 7. */
INLINE void zero_sums(const int spans) {
    _tile_zero(0);
    _tile_zero(1);
    if (spans == 1) return;
    _tile_zero(2);
    _tile_zero(3);
}
INLINE void load_sums(const int spans, const float *from) {
    amx_load(0, from, 64);
    amx_load(1, from + 256, 64);
    if (spans == 1) return;
    amx_load(2, from + 512, 64);
    amx_load(3, from + 768, 64);
}
INLINE void store_sums(const int spans, float *to, int64_t row_bytes) {
    _tile_stored(0, to, row_bytes);
    _tile_stored(1, to + 256, row_bytes);
    if (spans == 2) {
        _tile_stored(2, to + 512, row_bytes);
        _tile_stored(3, to + 768, row_bytes);
    }
    AMX_WRITTEN(to);
}

typedef struct {
    const char *x;      /* the first span */
    int64_t span_bytes; /* to the second */
    int64_t row_bytes;  /* of a row of tiles of inputs and sums: 4 for each row */
    int64_t groups;
} inputs;

/* A pair with one or two spans. Weights are made one pair ahead of their products: a load of what is
 * being stored would wait. */
INLINE void stream(const int spans, const int bits, const int group, const int has_low,
                   const int zero, source from, inputs in, char *room) {
#define MAKE(n) make_unit(bits, group, has_low, zero, &from, room + (n) % SLOTS * UNIT)
    zero_sums(spans);
    MAKE(0);
    MAKE(1);
    for (int64_t g = 0, unit = 0; g < in.groups; g++, unit += 2) {
        const char *x = in.x + g * 16 * in.row_bytes, *made = room + unit % SLOTS * UNIT;
        const int more = g + 1 < in.groups;
        ask_ahead(&from.next);
        amx_load(4, made, 64);
        AMX_WRITTEN(room);
        if (more) MAKE(unit + 2);
        amx_load(6, x, in.row_bytes);
        _tile_dpbf16ps(0, 4, 6);
        if (spans == 2) {
            amx_load(7, x + in.span_bytes, in.row_bytes);
            _tile_dpbf16ps(2, 4, 7);
        }
        amx_load(5, made + UNIT, 64);
        AMX_WRITTEN(room);
        if (more) MAKE(unit + 3);
        _tile_dpbf16ps(1, 5, 6);
        if (spans == 2) _tile_dpbf16ps(3, 5, 7);
    }
#undef MAKE
}

typedef void stream_function(const source *, const inputs *, char *);
typedef void make_function(source *, char *, int64_t);
#define FORM(name, bits, group, has_low, half_scales, zero)                                         \
    static void name##_1(const source *from, const inputs *in, char *room) {                       \
        stream(1, bits, group, has_low, zero, *from, *in, room);                                   \
    }                                                                                              \
    static void name##_2(const source *from, const inputs *in, char *room) {                       \
        stream(2, bits, group, has_low, zero, *from, *in, room);                                   \
    }                                                                                              \
    static void make_##name(source *from, char *to, int64_t units) {                               \
        for (int64_t i = 0; i < units; i++)                                                        \
            make_unit(bits, group, has_low, zero, from, to + i * UNIT);                            \
    }
RK_FORMS(FORM)
#define STREAMS(name, ...) {name##_1, name##_2},
static stream_function *const streams[][2] = {RK_FORMS(STREAMS)};
#define MAKES(name, ...) make_##name,
static make_function *const makes[] = {RK_FORMS(MAKES)};

/* Add a section's products with one or two spans. */
INLINE void meet(const int spans, const char *weights, const char *x, int64_t span_bytes,
                 int64_t groups) {
    for (int64_t g = 0; g < groups; g++, weights += 2 * UNIT, x += UNIT) {
        amx_load(4, weights, 64);
        amx_load(6, x, 64);
        _tile_dpbf16ps(0, 4, 6);
        amx_load(5, weights + UNIT, 64);
        _tile_dpbf16ps(1, 5, 6);
        if (spans == 1) continue;
        amx_load(7, x + span_bytes, 64);
        _tile_dpbf16ps(2, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
    }
}

/* The sums of a pair's two halves for up to 16 rows from `row`, whose tiles have rows of `row_bytes`,
 * to outputs from the n-th pair's first. */
static void put_span(const int64_t *arg, int64_t n, int64_t row, int64_t rows, const float *sums,
                     int64_t row_bytes) {
    for (int64_t half = 0; half < 2; half++, sums += 256) {
        int64_t first = n * 32 + half * 16, left = INT(5) - first;
        const float *bias = INT(12) ? PTR(float, 12) + first : NULL;
        const vf factor = vf_load(PTR(float, 17) + first);
        vf of_row[16];
        if (left <= 0) return;
        if (row_bytes == 4) {
            of_row[0] = vf_load(sums);
        } else {
            const __mmask16 some = (__mmask16)((1 << row_bytes / 4) - 1);
            UNROLL
            for (int i = 0; i < 16; i++)
                of_row[i] = _mm512_maskz_loadu_ps(some, (const char *)sums + i * row_bytes);
            transpose16((__m512i *)of_row);
        }
        for (int64_t r = 0; r < rows; r++)
            put_outputs(vf_mul(of_row[r], factor), bias, PTR(void, 13), (row + r) * INT(15) + first,
                        left, (int)INT(14));
    }
}

static void ask_for_pair(const int64_t *arg, int64_t n, int64_t row, int64_t rows) {
    ask_for_outputs(PTR(void, 13), row * INT(15) + n * 32, rows, INT(15), 2, (int)INT(14));
}

static void few_rows(const int64_t *arg, int64_t n, inputs in, int64_t soon, char *room) {
    int64_t rows = INT(9), spans = rows > 16 ? 2 : 1;
    float *sums = (float *)(room + SLOTS * UNIT);
    source from = {PTR(uint8_t, 0) + n * INT(3), PTR(char, 1) + n * INT(4), after_tile(arg, n, soon)};
    ask_for_pair(arg, n, 0, rows);
    streams[INT(2)][spans - 1](&from, &in, room);
    if (spans == 1) store_sums(1, sums, in.row_bytes);
    else store_sums(2, sums, in.row_bytes);
    put_span(arg, n, 0, rows < 16 ? rows : 16, sums, in.row_bytes);
    if (spans == 2) put_span(arg, n, 16, rows - 16, sums + 512, in.row_bytes);
}

/* Spans from `first` to `last`, a section of columns at a time. */
static void many_rows(const int64_t *arg, int64_t n, inputs in, int64_t first, int64_t last,
                      char *room) {
    float *waiting = (float *)(room + 2 * SECTION * UNIT);
    source from = {PTR(uint8_t, 0) + n * INT(3), PTR(char, 1) + n * INT(4), {0}};
    int64_t sections = (in.groups + SECTION - 1) / SECTION, each = (in.groups + sections - 1) / sections;
    for (int64_t g = 0, count; g < in.groups; g += count) {
        count = in.groups - g < each ? in.groups - g : each;
        makes[INT(2)](&from, room, 2 * count);
        AMX_WRITTEN(room);
        for (int64_t s = first, spans; s < last; s += spans) {
            const char *x = in.x + s * in.span_bytes + g * UNIT;
            float *sums = waiting + (s - first) * 512;
            spans = last - s < 2 ? 1 : 2;
            int64_t row = 16 * s, rows = INT(9) - row < 32 ? INT(9) - row : 32;
            if (g + count == in.groups) ask_for_pair(arg, n, row, rows);
            if (spans == 1) {
                if (g) load_sums(1, sums);
                else zero_sums(1);
                meet(1, room, x, 0, count);
                store_sums(1, sums, 64);
            } else {
                if (g) load_sums(2, sums);
                else zero_sums(2);
                meet(2, room, x, in.span_bytes, count);
                store_sums(2, sums, 64);
            }
            if (g + count < in.groups) continue;
            put_span(arg, n, row, rows < 16 ? rows : 16, sums, 64);
            if (spans == 2) put_span(arg, n, row + 16, rows - 16, sums + 512, 64);
        }
    }
}

/* Arguments as in linear_packed.c: a tile is a pair here, 6 are spans, 7 and 8 nothing; 17 factors. */
void rk_linear_tiles(const int64_t *arg, rk_thread *t) {
    int64_t rows = INT(9), columns = INT(10), pairs = (INT(5) + 31) / 32, first, last;
    int64_t spans = (rows + 15) / 16, width = rows < 16 ? rows : 16;
    int64_t waiting = spans < MOST_SPANS ? spans : MOST_SPANS, soon = rk_share_ahead(t, pairs);
    rk_share(t, pairs, &first, &last);
    if (!rows || first == last || !rk_amx()) return; /* where there is none, nobody asks */
    char *room = rk_scratch(t, (size_t)(2 * SECTION * UNIT + waiting * 2 * UNIT));
    inputs in = {PTR(char, 6), 32 * columns, 4 * width, columns / 32};
    amx_size sums = {16, (int)in.row_bytes}, weights = {16, 64};
    amx_shapes((amx_size[8]){sums, sums, sums, sums, weights, weights, sums, sums});
    for (int64_t n = first; n < last; n++) {
        if (spans <= 2) few_rows(arg, n, in, soon, room);
        for (int64_t s = 0; spans > 2 && s < spans; s += MOST_SPANS)
            many_rows(arg, n, in, s, s + MOST_SPANS < spans ? s + MOST_SPANS : spans, room);
    }
    _tile_release();
}

/* 32 columns of a row as bfloat16, times 2^32. */
INLINE __m512i columns_of(const void *x, int64_t at, const int half) {
    const vf by = vf_set(0x1p32f);
    vf low = half ? vf_load_bf16((const bf16 *)x + at) : vf_load((const float *)x + at);
    vf high = half ? vf_load_bf16((const bf16 *)x + at + 16) : vf_load((const float *)x + at + 16);
    return (__m512i)_mm512_cvtne2ps_pbh(vf_mul(high, by), vf_mul(low, by));
}

/* Rows of inputs to spans.  0 x, 1 half, 2 row stride, 3 rows, 4 columns, 6 out bfloat16 */
void rk_stage_tiles(const int64_t *arg, rk_thread *t) {
    int64_t rows = INT(3), columns = INT(4), spans = (rows + 15) / 16, groups = columns / 32;
    int64_t width = rows < 16 ? rows : 16, first, last;
    rk_share(t, spans * groups, &first, &last);
    for (int64_t n = first; n < last; n++) {
        int64_t row = n / groups * 16, g = n % groups;
        int64_t left = rows - row < 16 ? rows - row : 16;
        uint32_t *to = PTR(uint32_t, 6) + n / groups * 8 * columns + g * 16 * width;
        __m512i part[16];
        UNROLL
        for (int r = 0; r < 16; r++) part[r] = _mm512_setzero_si512();
        for (int64_t r = 0; r < left; r++) {
            int64_t at = (row + r) * INT(2) + g * 32;
            part[r] = INT(1) ? columns_of(PTR(void, 0), at, 1) : columns_of(PTR(void, 0), at, 0);
        }
        if (width == 1) {
            _mm512_storeu_si512(to, part[0]);
            continue;
        }
        transpose16(part);
        const __mmask16 some = (__mmask16)((1 << width) - 1);
        UNROLL
        for (int p = 0; p < 16; p++) _mm512_mask_storeu_epi32(to + p * width, some, part[p]);
    }
}
#else
void rk_linear_tiles(const int64_t *arg, rk_thread *t) { (void)arg, (void)t; }
void rk_stage_tiles(const int64_t *arg, rk_thread *t) { (void)arg, (void)t; }
#endif
