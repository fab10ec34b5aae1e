/* Products with packed weights by Intel's matrix unit (AMX), for many rows: the bits of the others.
 *
 * A tile register holds 16 rows of 64 bytes. One instruction multiplies the codes of 16 rows of
 * inputs by those of 16 outputs, a group of columns, to 16 x 16 sums of 32 bits. What is left for
 * vectors is to scale and to add these, group by group, as linear_packed.c and linear_wide.c do.
 * Both sides are laid out as one record a group:
 *
 *   inputs    16, 12, 8 or 4 rows of codes, of 16 bits first all high bytes, then all low; scales; sums
 *   weights   code - zero, signed, 4 columns of 16 outputs to a row; scales; lows
 *   sums      of a group are stored by the matrix unit while those before are scaled
 *
 * While tile registers are at work, one of a core's two units for floats rests: the other one's
 * instructions are what a group costs. So 8-bit sums become floats by the unit for whole numbers,
 * as MAGIC + sum, and MAGIC * scale is taken away as they are scaled: all exact, for a sum is below
 * 2^22 and a scale has at most 19 digits. A tile of outputs with an infinite scale or NaN is left to
 * vectors alone. The whole numbers are exact either way, so which way a row takes changes no bit.
 *
 * A load waits for stores before it whose addresses end in the same 12 bits. So sums move through
 * memory with the records that are loaded meanwhile, and keep away from them.
 */
#include "linear_amx.h"

#if RK_AMX
#define MAGIC 12582912 /* 1.5 * 2^23: one more is the next float */
#define MAGIC_BITS 0x4b400000
#define PAGE 4096
#define MOST_STAGED (1 << 20) /* bytes of inputs at a time: they stay in a core's cache */

/* Fewer rows are faster without, for groups of 16 columns give an instruction half as much to do; and
 * so are one or two that are left over. */
int64_t rk_amx_rows(int64_t rows, int64_t group) {
    if (rows < (group == 16 ? 28 : 7) || !rk_amx()) return 0;
    return rows > 16 && rows % 16 < 3 ? rows - rows % 16 : rows;
}

/* Some rows of one call: as many as there are, and computed as `size`, a multiple of 4. */
typedef struct {
    int64_t row, rows, size;
} span;

static int64_t num_spans(int64_t rows) { return (rows + 15) / 16; }

static span span_at(int64_t i, int64_t rows) {
    int64_t left = rows - 16 * i < 16 ? rows - 16 * i : 16;
    return (span){16 * i, left, (left + 3) / 4 * 4};
}

/* Tile registers: of 16 rows sums in 0 and 1, inputs in 4; of fewer, those of the last span, sums in
 * 2 and 3, inputs in 5; weights in 6. */
static void shape(int fewer, int group) {
    amx_size sums = {16, 64}, few = {fewer, 64};
    amx_shapes((amx_size[8]){sums, sums, few, few, {16, group}, {fewer, group}, {group / 4, 64}});
}

/* Of a record's bytes the last 128 are two vectors of floats. They belong to the group that is scaled
 * while the record's codes are multiplied, LEAD before. */
#define CODES 512
#define RECORD(x_bits) ((x_bits) / 8 * CODES + 128)
#define LEAD(x_bits) ((x_bits) == 8 ? 3 : 2)
#define STAGED 5 /* records before the one that is scaled */

/* Where a tile of outputs lies before it is staged; how, as in packed.h. */
typedef struct {
    const uint8_t *code;
    const char *scale;
    int bits, group, half_scales, zero;
} source;

typedef struct {
    const char *inputs; /* records */
    char *weights;      /* records */
    char *sums;         /* RING bytes; all three at the same place of a page */
    int64_t groups;
    source *from; /* weights are staged from there, or NULL: they are records */
    int once;     /* no other rows meet these weights: only RING bytes of records are kept */
    ahead next;
} operands;

/* A ring at an even number of pages: two places in turn, as far on as records are. */
#define RING (4 * PAGE)
INLINE char *in_ring(const int x_bits, char *ring, int64_t i, int64_t away) {
    return ring + i % 2 * 2 * PAGE + (i * RECORD(x_bits) + away) % PAGE;
}

INLINE int32_t *sums_of(const int x_bits, char *ring, int64_t g) {
    return (int32_t *)in_ring(x_bits, ring, g, x_bits == 8 ? 0 : 3 * RECORD(16));
}

INLINE char *weights_of(const int x_bits, const operands *a, int64_t i) {
    return a->once ? in_ring(x_bits, a->weights, i, 0) : a->weights + i * RECORD(x_bits);
}

#define MULTIPLY(sums, inputs, x)                                                                  \
    do {                                                                                           \
        amx_load(inputs, x, 32);                                                                   \
        _tile_zero(sums);                                                                          \
        _tile_dpbssd(sums, inputs, 6);                                                             \
    } while (0)
/* Into the first or second register for sums. */
INLINE void multiply(const int rows, const int second, const char *x) {
    if (rows == 16 && !second) MULTIPLY(0, 4, x);
    else if (rows == 16) MULTIPLY(1, 4, x);
    else if (!second) MULTIPLY(2, 5, x);
    else MULTIPLY(3, 5, x);
}

INLINE void store_sums(const int rows, const int second, int32_t *to) {
    if (rows == 16 && !second) _tile_stored(0, to, 64);
    else if (rows == 16) _tile_stored(1, to, 64);
    else if (!second) _tile_stored(2, to, 64);
    else _tile_stored(3, to, 64);
}

/* Store what was multiplied, unless `to` is NULL, and multiply a record. With 8 bits odd groups have
 * the second register; with 16 low bytes. */
INLINE void turn(const int rows, const int x_bits, const int odd, const char *x, const char *w,
                 int32_t *to) {
    const int second = x_bits == 8 && odd;
    if (to) store_sums(rows, second, to);
    amx_load(6, w, 64);
    multiply(rows, second, x);
    if (x_bits == 8) return;
    if (to) store_sums(rows, 1, to + 256);
    multiply(rows, 1, x + CODES);
}

/* Add a group's sums, scaled by the floats of two records. */
INLINE void scale_sums(const int rows, const int x_bits, const int has_low, const int32_t *dots,
                       const float *x_scales, const float *scales, vf *sum) {
    __asm__("" : "+r"(dots), "+r"(x_scales)); /* one register each: with two an operand is two steps */
    vf d = vf_load(scales), low = vf_load(scales + 16), above = vf_mul(d, vf_set(-MAGIC));
    UNROLL
    for (int r = 0; r < rows; r++) {
        vi dot = _mm512_load_si512(dots + 16 * r);
        vf term;
        if (x_bits == 16)
            term = vf_mul(vf_of_vi(vi_joined(dot, _mm512_load_si512(dots + 256 + 16 * r))), d);
        else
            term = vf_fma(_mm512_castsi512_ps(vi_add(dot, vi_set(MAGIC_BITS))), d, above);
        if (has_low) term = vf_fma(low, vf_set(x_scales[16 + r]), term);
        sum[r] = vf_fma(term, vf_set(x_scales[r]), sum[r]);
    }
}

/* Codes and scales of a group to a record, and to the one in which its scales belong. */
INLINE void stage_codes(source *from, const int bits, const int group, const int zero, char *to) {
    const int lines = bits * group / 32;
    const __m512i zeros = _mm512_set1_epi8((char)from->zero);
    UNROLL
    for (int i = 0; i < lines; i++) {
        codes c = codes_load(from->code + 64 * i);
        codes low = bits == 4 ? codes_low(c) : c, high = codes_high(c);
        _mm512_store_si512(to + 64 * i, zero ? _mm512_sub_epi8(low, zeros) : low);
        if (bits == 4)
            _mm512_store_si512(to + 64 * (lines + i), zero ? _mm512_sub_epi8(high, zeros) : high);
    }
    from->code += 64 * lines;
}
INLINE void stage(const int x_bits, const int has_low, const operands *a, int64_t g, vf *poison) {
    source *from = a->from;
    char *to = weights_of(x_bits, a, g), *last = weights_of(x_bits, a, g + LEAD(x_bits));
    float *floats = (float *)(last + RECORD(x_bits) - 128);
    if (from->bits == 4 && !from->zero) stage_codes(from, 4, 32, 0, to);
    else if (from->bits == 4) stage_codes(from, 4, 32, 1, to);
    else if (from->group == 32) stage_codes(from, 8, 32, 1, to);
    else stage_codes(from, 8, 16, 1, to);
    UNROLL
    for (int i = 0; i <= has_low; i++) {
        vf scale = load_scale(from->scale, from->half_scales);
        vf_store(floats + 16 * i, scale);
        if (!i && x_bits == 8) *poison = vf_fma(scale, vf_set(0), *poison); /* NaN if any is not finite */
        from->scale += from->half_scales ? 32 : 64;
    }
}

INLINE void stage_some(const int x_bits, const int has_low, const operands *a, int64_t g, int64_t end,
                       vf *poison) {
    for (; a->from && g < end && g < a->groups; g++) stage(x_bits, has_low, a, g, poison);
}

/* 16 outputs for up to 16 rows; 0: they are wrong, for of the scales that were staged some are not
 * finite. In a ring, a record's scales lie where codes were 6 before. `staged`: the weights are
 * records, which leaves little to do but to multiply and to scale. */
INLINE int block(const int rows, const int x_bits, const int has_low, const int staged, operands a,
                 vf *result) {
    if (staged) a.from = NULL, a.once = 0;
    const int size = RECORD(x_bits), lead = LEAD(x_bits), tail = size - 128;
    const char *x = a.inputs;
    vf sum[16], poison = vf_set(0);
    UNROLL
    for (int r = 0; r < rows; r++) sum[r] = vf_set(0);
    stage_some(x_bits, has_low, &a, 0, lead, &poison);
    turn(rows, x_bits, 0, x, weights_of(x_bits, &a, 0), NULL);
    if (x_bits == 8) turn(rows, x_bits, 1, x + size, weights_of(x_bits, &a, 1), NULL);
    x += (lead - 1) * size;
    turn(rows, x_bits, 0, x, weights_of(x_bits, &a, lead - 1), sums_of(x_bits, a.sums, 0));
    stage_some(x_bits, has_low, &a, lead, STAGED, &poison);
    for (int64_t g = 0; g < a.groups; g++) {
        ask_ahead(&a.next);
        stage_some(x_bits, has_low, &a, g + STAGED, g + STAGED + 1, &poison);
        const char *w = weights_of(x_bits, &a, g + lead);
        int32_t *to = sums_of(x_bits, a.sums, g + 1);
        x += size;
        if (g % 2) turn(rows, x_bits, 0, x, w, to);
        else turn(rows, x_bits, 1, x, w, to);
        scale_sums(rows, x_bits, has_low, sums_of(x_bits, a.sums, g), (const float *)(x + tail),
                   (const float *)(w + tail), sum);
    }
    UNROLL
    for (int r = 0; r < rows; r++) result[r] = sum[r];
    return _mm512_cmp_ps_mask(poison, poison, _CMP_UNORD_Q) == 0;
}

typedef int block_function(const operands *, vf *);
#define BLOCK(rows, x_bits, has_low)                                                               \
    static int block_##rows##_##x_bits##_##has_low(const operands *a, vf *sum) {                   \
        if (a->from) return block(rows, x_bits, has_low, 0, *a, sum);                              \
        return block(rows, x_bits, has_low, 1, *a, sum);                                           \
    }
#define BLOCKS(rows) BLOCK(rows, 8, 0) BLOCK(rows, 8, 1) BLOCK(rows, 16, 0) BLOCK(rows, 16, 1)
BLOCKS(4)
BLOCKS(8)
BLOCKS(12)
BLOCKS(16)
/* By rows, bits of inputs, lows. */
#define NAMES(rows)                                                                                \
    {{block_##rows##_8_0, block_##rows##_8_1}, {block_##rows##_16_0, block_##rows##_16_1}}
static block_function *const blocks[4][2][2] = {NAMES(4), NAMES(8), NAMES(12), NAMES(16)};

#define FORM(name, bits, group, has_low, half_scales, zero) {bits, group, has_low, half_scales, zero},
static const struct {
    int bits, group, has_low, half_scales, zero;
} forms[] = {RK_FORMS(FORM)};

/* A row's codes as that of records. */
INLINE void stage_row(const int8_t *x, int64_t groups, const int group, const int x_bits, char *to) {
    const __m512i parts_32 = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    const __m256i parts_16 = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    for (int64_t g = 0; g < groups; g++, x += group * (x_bits / 8), to += RECORD(x_bits)) {
        if (x_bits == 8) {
            memcpy(to, x, group);
        } else if (group == 32) {
            __m512i parts = _mm512_permutexvar_epi32(parts_32, _mm512_loadu_si512(x));
            _mm256_store_si256((__m256i *)to, _mm512_castsi512_si256(parts));
            _mm256_store_si256((__m256i *)(to + CODES), _mm512_extracti64x4_epi64(parts, 1));
        } else {
            __m256i both = _mm256_loadu_si256((const __m256i *)x);
            __m256i parts = _mm256_permutevar8x32_epi32(both, parts_16);
            _mm_store_si128((__m128i *)to, _mm256_castsi256_si128(parts));
            _mm_store_si128((__m128i *)(to + CODES), _mm256_extracti128_si256(parts, 1));
        }
    }
}

static void stage_span(const int64_t *arg, span s, int x_bits, char *to) {
    int64_t columns = INT(10), groups = columns / INT(11), size = RECORD(x_bits);
    for (int64_t r = 0; r < s.rows; r++) {
        const int8_t *x = PTR(int8_t, 6) + (s.row + r) * columns * (x_bits / 8);
        char *row = to + 32 * r;
        if (x_bits == 8 && INT(11) == 32) stage_row(x, groups, 32, 8, row);
        else if (x_bits == 8) stage_row(x, groups, 16, 8, row);
        else if (INT(11) == 32) stage_row(x, groups, 32, 16, row);
        else stage_row(x, groups, 16, 16, row);
    }
    const float *scales = PTR(float, 7) + s.row * groups, *sums = PTR(float, 8) + s.row * groups;
    const __m512i counts = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i places = _mm512_mullo_epi32(counts, _mm512_set1_epi32((int)groups));
    const __mmask16 some = (__mmask16)((1 << s.rows) - 1); /* of further ones nothing is written */
    float *floats = (float *)(to + (LEAD(x_bits) + 1) * size - 128);
    for (int64_t g = 0; g < groups; g++, floats += size / 4) {
        vf_store(floats, _mm512_mask_i32gather_ps(vf_set(0), some, places, scales + g, 4));
        if (forms[INT(2)].has_low)
            vf_store(floats + 16, _mm512_mask_i32gather_ps(vf_set(0), some, places, sums + g, 4));
    }
}

/* The n-th tile of outputs before it is staged. */
static source source_of(const int64_t *arg, int64_t n) {
    int64_t form = INT(2);
    return (source){PTR(uint8_t, 0) + n * INT(3), PTR(char, 1) + n * INT(4), forms[form].bits,
                    forms[form].group, forms[form].half_scales, forms[form].zero};
}

/* What is asked for while the i-th of `count` spans meets the n-th tile: a part of the tile that
 * follows, if it is before `end`. */
static ahead part_ahead(const int64_t *arg, int64_t n, int64_t end, int64_t i, int64_t count) {
    int64_t groups = INT(10) / INT(11), turns = count * groups, before = i * groups;
    int64_t part = (INT(3) / turns + 63) / 64 * 64, scale_part = (INT(4) / turns + 63) / 64 * 64;
    if (n + 1 >= end) return (ahead){0};
    return (ahead){PTR(char, 0) + (n + 1) * INT(3) + before * part,
                   PTR(char, 1) + (n + 1) * INT(4) + before * scale_part,
                   before * part < INT(3) ? part : 0, before * scale_part < INT(4) ? scale_part : 0};
}

/* As put_outputs, of rows `stride` elements apart; what is the same for all of them is asked once. */
INLINE void put_rows(const int half, const vf *values, int64_t rows, const float *bias, void *out,
                     int64_t at, int64_t stride, int64_t count) {
    if (count < 16 || bias) {
        for (int64_t r = 0; r < rows; r++)
            put_outputs(values[r], bias, out, at + r * stride, count, half);
        return;
    }
    for (int64_t r = 0; r < rows; r++) store_any(out, at + r * stride, values[r], half);
}

/* The n-th 16 outputs of a span; 0: left undone, for of the scales staged some are not finite. */
static int outputs_of(const int64_t *arg, int x_bits, const operands *a, int64_t n, span s) {
    vf sum[16];
    const float *bias = INT(12) ? PTR(float, 12) + n * 16 : NULL;
    int64_t at = s.row * INT(15) + n * 16;
    ask_for_outputs(PTR(void, 13), at, s.rows, INT(15), 1, (int)INT(14));
    if (!blocks[s.size / 4 - 1][x_bits == 16][forms[INT(2)].has_low](a, sum)) return 0;
    if (INT(14)) put_rows(1, sum, s.rows, bias, PTR(void, 13), at, INT(15), INT(5) - n * 16);
    else put_rows(0, sum, s.rows, bias, PTR(void, 13), at, INT(15), INT(5) - n * 16);
    return 1;
}

void rk_amx_linear(const int64_t *arg, rk_thread *t, int x_bits, rk_tile_by_vectors *by_vectors) {
    int64_t groups = INT(10) / INT(11), rows = rk_amx_rows(INT(9), INT(11)), first, last;
    int64_t count = num_spans(rows);
    int64_t bytes = ((groups + STAGED) * RECORD(x_bits) + PAGE - 1) / PAGE * PAGE;
    int64_t most = MOST_STAGED / bytes < 1 ? 1 : MOST_STAGED / bytes, tiles = (INT(5) + 15) / 16;
    int64_t soon = rk_share_ahead(t, tiles);
    rk_share(t, tiles, &first, &last);
    if (!rows || first == last) return;
    if (most > count) most = count;
    char *ring = rk_scratch(t, (size_t)(2 * RING + bytes * (1 + most)));
    char *weights = ring + RING, *inputs = weights + RING + bytes;
    shape((int)span_at(count - 1, rows).size, (int)INT(11));
    for (int64_t from = 0; from < count; from += most) {
        int64_t end = from + most < count ? from + most : count;
        for (int64_t i = from; i < end && t->scratch_of != t->run; i++)
            stage_span(arg, span_at(i, rows), x_bits, inputs + (i - from) * bytes);
        t->scratch_of = most == count ? t->run : 0; /* all of them lie there for the next piece */
        for (int64_t n = first; n < last; n++) {
            source raw = source_of(arg, n);
            for (int64_t i = from; i < end; i++) {
                operands a = {inputs + (i - from) * bytes, weights, ring, groups, i == from ? &raw : NULL,
                              end == from + 1, part_ahead(arg, n, soon, i - from, end - from)};
                if (outputs_of(arg, x_bits, &a, n, span_at(i, rows))) continue;
                if (!from) by_vectors(arg, n, rows);
                break;
            }
        }
    }
    _tile_release();
}
#else
int64_t rk_amx_rows(int64_t rows, int64_t group) { return (void)rows, (void)group, 0; }
void rk_amx_linear(const int64_t *arg, rk_thread *t, int x_bits, rk_tile_by_vectors *by_vectors) {
    (void)arg, (void)t, (void)x_bits, (void)by_vectors;
}
#endif
