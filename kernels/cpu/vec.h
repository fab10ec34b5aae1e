/* Sixteen floats at a time, for AVX-512, AVX2 and plain C: the only file that knows instructions.
 *
 * Every function does the same arithmetic in the same order on each of them, but for fused
 * multiply-add, which plain C uses only where the machine has it. RK_PORTABLE, RK_AVX2 and RK_VNNI
 * (AVX-512 without the matrix unit of amx.h) choose a narrower form than the compiler's target, for
 * tests.
 */
#ifndef RK_VEC_H
#define RK_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if !defined(RK_PORTABLE) && !defined(RK_AVX2) && defined(__AVX512F__) && defined(__AVX512BW__) && \
    defined(__AVX512VL__) && defined(__AVX512DQ__) && defined(__AVX512VNNI__)
#define RK_ISA 512
#elif !defined(RK_PORTABLE) && defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define RK_ISA 256
#else
#define RK_ISA 0
#endif
#if RK_ISA == 512 && defined(__AVX512BF16__)
#define RK_DPBF16 1
#else
#define RK_DPBF16 0
#endif
#if RK_ISA
#include <immintrin.h>
#endif

#if RK_ISA == 0 && defined(__SANITIZE_ADDRESS__)
#define INLINE static inline /* or checks of every number take compilers minutes */
#else
#define INLINE static inline __attribute__((always_inline))
#endif

/* Before a loop of constant length whose arrays are to live in registers. Plain C has none to spare,
 * and long straight code takes compilers long. */
#if RK_ISA
#define UNROLL _Pragma("GCC unroll 16")
#else
#define UNROLL
#endif

typedef uint16_t bf16;
typedef uint16_t f16;

INLINE float bf16_to_float(bf16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float out;
    memcpy(&out, &bits, 4);
    return out;
}

INLINE bf16 bf16_of(float x) { /* to nearest, ties to even; NaN stays NaN */
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (bf16)((bits >> 16) | 0x40);
    return (bf16)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

INLINE float f16_to_float(f16 h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = h & 0x7fff, bits;
    float out;
    if (magnitude >= 0x7c00) {
        bits = sign | 0x7f800000u | (magnitude & 0x3ff) << 13;
    } else if (magnitude >= 0x400) {
        bits = sign | ((magnitude << 13) + 0x38000000u);
    } else {
        out = (float)magnitude * 5.9604644775390625e-8f; /* 2^-24 */
        return sign ? -out : out;
    }
    memcpy(&out, &bits, 4);
    return out;
}

INLINE f16 f16_of(float x) { /* to nearest, ties to even; infinite from 65520 on; NaN stays NaN */
    uint32_t bits, sign, magnitude;
    memcpy(&bits, &x, 4);
    sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (f16)(sign | 0x7e00);
    if (magnitude >= 0x477ff000u) return (f16)(sign | 0x7c00);
    if (magnitude < 0x38800000u) { /* below 2^-14: adding 0.5 leaves whole multiples of 2^-24 */
        float moved;
        memcpy(&moved, &magnitude, 4);
        moved += 0.5f;
        memcpy(&magnitude, &moved, 4);
        return (f16)(sign | (magnitude - 0x3f000000u));
    }
    return (f16)(sign | ((magnitude + 0xfffu + (magnitude >> 13 & 1) - 0x38000000u) >> 13));
}

/* ---------------------------------------------------------------- AVX-512 */
#if RK_ISA == 512
typedef __m512 vf;
typedef __m512i vi;

INLINE vf vf_set(float x) { return _mm512_set1_ps(x); }
INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void vf_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); } /* b where either is NaN */
INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
INLINE vf vf_abs(vf a) { return _mm512_abs_ps(a); }
INLINE vf vf_round(vf a) { return _mm512_roundscale_ps(a, 8); }
INLINE vf vf_exp2i(vf a) { /* 2^a for whole a within the exponent's range */
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(a), _mm512_set1_epi32(127)), 23));
}
INLINE vf vf_load_bf16(const bf16 *p) {
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
INLINE __m512i bf16_bits(vf x) { /* rounded, in the upper halves; the lower are anything */
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i even = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    return _mm512_mask_mov_epi32(even, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), quiet);
}
static __attribute__((noinline, cold, unused)) __m256i bf16_halves_of_any(vf x) {
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bf16_bits(x), 16));
}
INLINE __m256i bf16_halves(vf x) {
#if RK_DPBF16 /* one instruction, but where numbers are so small that it takes them for 0 */
    if (__builtin_expect(!_mm512_fpclass_ps_mask(x, 0x20), 1)) return (__m256i)_mm512_cvtneps_pbh(x);
    return bf16_halves_of_any(x);
#else
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bf16_bits(x), 16));
#endif
}
INLINE void vf_store_bf16(bf16 *p, vf x) { _mm256_storeu_si256((__m256i *)p, bf16_halves(x)); }
INLINE vf vf_rounded_bf16(vf x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16_halves(x)), 16));
}
INLINE vf vf_load_f16(const f16 *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
INLINE vf vf_load_i8(const int8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
INLINE void vf_store_i8(int8_t *p, vf x) { /* whole numbers within int8 */
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
}
INLINE vi vi_set(int32_t x) { return _mm512_set1_epi32(x); }
INLINE vf vf_of_vi(vi x) { return _mm512_cvtepi32_ps(x); }
INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
INLINE vi vi_joined(vi high, vi low) { return vi_add(_mm512_slli_epi32(high, 8), low); }

/* Codes of 16 rows and 4 columns, one byte each: row r in bytes 4r .. 4r + 3; codes_column takes
 * one of the columns out. vi_joined is 256 * high + low. */
typedef __m512i codes;
INLINE codes codes_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
INLINE codes codes_low(codes c) { return _mm512_and_si512(c, _mm512_set1_epi8(15)); }
INLINE codes codes_high(codes c) { return codes_low(_mm512_srli_epi16(c, 4)); }
INLINE vi codes_dot(vi sum, codes c, const int8_t *x) {
    int32_t four;
    memcpy(&four, x, 4);
    return _mm512_dpbusd_epi32(sum, c, _mm512_set1_epi32(four));
}
INLINE vi codes_column(codes c, int j) {
    return _mm512_and_si512(_mm512_srli_epi32(c, 8 * (unsigned)j), _mm512_set1_epi32(255));
}

/* ---------------------------------------------------------------- AVX2 */
#elif RK_ISA == 256
typedef struct { __m256 a, b; } vf;
typedef struct { __m256i a, b; } vi;

INLINE vf vf_set(float x) { return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE vf vf_load(const float *p) { return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
INLINE void vf_store(float *p, vf x) { _mm256_storeu_ps(p, x.a), _mm256_storeu_ps(p + 8, x.b); }
#define RK_PAIRWISE(name, op) \
    INLINE vf name(vf x, vf y) { return (vf){op(x.a, y.a), op(x.b, y.b)}; }
RK_PAIRWISE(vf_add, _mm256_add_ps)
RK_PAIRWISE(vf_sub, _mm256_sub_ps)
RK_PAIRWISE(vf_mul, _mm256_mul_ps)
RK_PAIRWISE(vf_div, _mm256_div_ps)
RK_PAIRWISE(vf_max, _mm256_max_ps)
RK_PAIRWISE(vf_min, _mm256_min_ps)
INLINE vf vf_fma(vf x, vf y, vf z) {
    return (vf){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
INLINE vf vf_abs(vf x) {
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (vf){_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
INLINE vf vf_round(vf x) { return (vf){_mm256_round_ps(x.a, 8), _mm256_round_ps(x.b, 8)}; }
INLINE __m256 half_exp2i(__m256 x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(
        _mm256_add_epi32(_mm256_cvtps_epi32(x), _mm256_set1_epi32(127)), 23));
}
INLINE vf vf_exp2i(vf x) { return (vf){half_exp2i(x.a), half_exp2i(x.b)}; }
INLINE __m256 half_load_bf16(const bf16 *p) { /* one shuffle, for the load repeats the 8 in each half */
    const __m256i places = _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7,
                                            -1, -1, 8, 9, -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15);
    __m256i all = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_shuffle_epi8(all, places));
}
INLINE vf vf_load_bf16(const bf16 *p) { return (vf){half_load_bf16(p), half_load_bf16(p + 8)}; }
INLINE vf vf_load_f16(const f16 *p) {
    return (vf){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))};
}
INLINE vf vf_load_i8(const int8_t *p) {
    __m128i all = _mm_loadu_si128((const __m128i *)p);
    return (vf){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(all)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(all, 8)))};
}
INLINE __m256i bf16_bits(__m256 x) { /* rounded, in the upper halves; the lower are anything */
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i even = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(even, quiet, nan);
}
INLINE void vf_store_bf16(bf16 *p, vf x) {
    __m256i a = _mm256_srli_epi32(bf16_bits(x.a), 16), b = _mm256_srli_epi32(bf16_bits(x.b), 16);
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8));
}
INLINE vf vf_rounded_bf16(vf x) {
    __m256i upper = _mm256_set1_epi32((int)0xffff0000u);
    return (vf){_mm256_castsi256_ps(_mm256_and_si256(bf16_bits(x.a), upper)),
                _mm256_castsi256_ps(_mm256_and_si256(bf16_bits(x.b), upper))};
}
INLINE void vf_store_i8(int8_t *p, vf x) {
    __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
    words = _mm256_permute4x64_epi64(words, 0xd8);
    _mm_storeu_si128((__m128i *)p, _mm_packs_epi16(_mm256_castsi256_si128(words),
                                                   _mm256_extracti128_si256(words, 1)));
}
INLINE vi vi_set(int32_t x) { return (vi){_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
INLINE vf vf_of_vi(vi x) { return (vf){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
INLINE vi vi_add(vi x, vi y) {
    return (vi){_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}
INLINE vi vi_joined(vi high, vi low) {
    return vi_add((vi){_mm256_slli_epi32(high.a, 8), _mm256_slli_epi32(high.b, 8)}, low);
}

typedef vi codes;
INLINE codes codes_load(const uint8_t *p) {
    return (codes){_mm256_loadu_si256((const __m256i *)p),
                   _mm256_loadu_si256((const __m256i *)(p + 32))};
}
INLINE codes codes_low(codes c) {
    __m256i mask = _mm256_set1_epi8(15);
    return (codes){_mm256_and_si256(c.a, mask), _mm256_and_si256(c.b, mask)};
}
INLINE codes codes_high(codes c) {
    return codes_low((codes){_mm256_srli_epi16(c.a, 4), _mm256_srli_epi16(c.b, 4)});
}
INLINE vi codes_column(codes c, int j) {
    __m256i mask = _mm256_set1_epi32(255);
    return (vi){_mm256_and_si256(_mm256_srli_epi32(c.a, 8 * j), mask),
                _mm256_and_si256(_mm256_srli_epi32(c.b, 8 * j), mask)};
}

/* ---------------------------------------------------------------- plain C */
#else
typedef struct { float v[16]; } vf;
typedef struct { int32_t v[16]; } vi;

#define RK_EACH for (int i = 0; i < 16; i++)
INLINE vf vf_set(float x) { vf r; RK_EACH r.v[i] = x; return r; }
INLINE vf vf_load(const float *p) { vf r; memcpy(r.v, p, 64); return r; }
INLINE void vf_store(float *p, vf x) { memcpy(p, x.v, 64); }
INLINE vf vf_add(vf a, vf b) { RK_EACH a.v[i] += b.v[i]; return a; }
INLINE vf vf_sub(vf a, vf b) { RK_EACH a.v[i] -= b.v[i]; return a; }
INLINE vf vf_mul(vf a, vf b) { RK_EACH a.v[i] *= b.v[i]; return a; }
INLINE vf vf_div(vf a, vf b) { RK_EACH a.v[i] /= b.v[i]; return a; }
#ifdef __FP_FAST_FMAF
INLINE vf vf_fma(vf a, vf b, vf c) {
    RK_EACH a.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
    return a;
}
#else
INLINE vf vf_fma(vf a, vf b, vf c) { RK_EACH a.v[i] = a.v[i] * b.v[i] + c.v[i]; return a; }
#endif
INLINE vf vf_max(vf a, vf b) { RK_EACH a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
INLINE vf vf_min(vf a, vf b) { RK_EACH a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return a; }
INLINE vf vf_abs(vf a) { RK_EACH a.v[i] = fabsf(a.v[i]); return a; }
/* Adding and taking away 1.5 * 2^23 rounds to nearest even what is below 2^22. */
INLINE vf vf_round(vf a) { RK_EACH a.v[i] = (a.v[i] + 12582912.0f) - 12582912.0f; return a; }
INLINE int32_t whole(float x) { return x >= -1024.0f && x <= 1024.0f ? (int32_t)x : 0; }
INLINE vf vf_exp2i(vf a) {
    RK_EACH {
        uint32_t bits = (uint32_t)(whole(a.v[i]) + 127) << 23;
        memcpy(&a.v[i], &bits, 4);
    }
    return a;
}
INLINE vf vf_load_bf16(const bf16 *p) { vf r; RK_EACH r.v[i] = bf16_to_float(p[i]); return r; }
INLINE void vf_store_bf16(bf16 *p, vf x) { RK_EACH p[i] = bf16_of(x.v[i]); }
INLINE vf vf_load_f16(const f16 *p) { vf r; RK_EACH r.v[i] = f16_to_float(p[i]); return r; }
INLINE vf vf_load_i8(const int8_t *p) { vf r; RK_EACH r.v[i] = p[i]; return r; }
INLINE void vf_store_i8(int8_t *p, vf x) { RK_EACH p[i] = (int8_t)whole(x.v[i]); }
INLINE vi vi_set(int32_t x) { vi r; RK_EACH r.v[i] = x; return r; }
INLINE vf vf_of_vi(vi x) { vf r; RK_EACH r.v[i] = (float)x.v[i]; return r; }
INLINE vi vi_add(vi x, vi y) { RK_EACH x.v[i] += y.v[i]; return x; }
INLINE vi vi_joined(vi high, vi low) { RK_EACH low.v[i] += high.v[i] * 256; return low; }

typedef struct { uint8_t v[64]; } codes;
INLINE codes codes_load(const uint8_t *p) { codes c; memcpy(c.v, p, 64); return c; }
INLINE codes codes_low(codes c) { for (int i = 0; i < 64; i++) c.v[i] &= 15; return c; }
INLINE codes codes_high(codes c) { for (int i = 0; i < 64; i++) c.v[i] >>= 4; return c; }
INLINE vi codes_dot(vi sum, codes c, const int8_t *x) {
    RK_EACH for (int j = 0; j < 4; j++) sum.v[i] += (int32_t)c.v[4 * i + j] * x[j];
    return sum;
}
INLINE vi codes_column(codes c, int j) { vi r; RK_EACH r.v[i] = c.v[4 * i + j]; return r; }
#endif

/* ---------------------------------------------------------------- common */

/* Lane i with lane i + 8, then + 4, + 2, + 1: the one order in which lanes are added. */
#if RK_ISA
INLINE float vf_sum(vf x) {
#if RK_ISA == 512
    __m256 y = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
#else
    __m256 y = _mm256_add_ps(x.a, x.b);
#endif
    __m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    z = _mm_add_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
}
#else
INLINE float vf_sum(vf x) {
    float v[16];
    vf_store(v, x);
    for (int width = 8; width; width /= 2)
        for (int i = 0; i < width; i++) v[i] += v[i + width];
    return v[0];
}
#endif

#if RK_ISA == 512
INLINE float vf_largest(vf x) { return _mm512_reduce_max_ps(x); }
#elif RK_ISA == 256
INLINE float vf_largest(vf x) {
    __m256 y = _mm256_max_ps(x.a, x.b);
    __m128 z = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    z = _mm_max_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_max_ss(z, _mm_movehdup_ps(z)));
}
#else
INLINE float vf_largest(vf x) {
    float best = x.v[0]; /* NaN in lane 0 stays: others are skipped */
    for (int i = 1; i < 16; i++) best = x.v[i] > best ? x.v[i] : best;
    return best;
}
#endif

/* Of 16 vectors the largest number each, and the sums, in any order: for numbers that add exactly. */
#if RK_ISA == 512
#define RK_OF_16(name, op)                                                                         \
    INLINE vf name(const vf *x) {                                                                  \
        vf a[8], b[4], c[2];                                                                       \
        for (int i = 0; i < 8; i++)                                                                \
            a[i] = op(_mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]),                                  \
                      _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]));                                 \
        for (int i = 0; i < 4; i++) {                                                              \
            __m512d first = _mm512_castps_pd(a[2 * i]), second = _mm512_castps_pd(a[2 * i + 1]);   \
            b[i] = op(_mm512_castpd_ps(_mm512_unpacklo_pd(first, second)),                         \
                      _mm512_castpd_ps(_mm512_unpackhi_pd(first, second)));                        \
        }                                                                                          \
        for (int i = 0; i < 2; i++)                                                                \
            c[i] = op(_mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0x88),                          \
                      _mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0xdd));                         \
        return op(_mm512_shuffle_f32x4(c[0], c[1], 0x88), _mm512_shuffle_f32x4(c[0], c[1], 0xdd)); \
    }
RK_OF_16(vf_largest_of, vf_max)
RK_OF_16(vf_sum_of, vf_add)
#else
#define RK_OF_16(name, of_one)                                                                     \
    INLINE vf name(const vf *x) {                                                                  \
        float v[16];                                                                               \
        for (int i = 0; i < 16; i++) v[i] = of_one(x[i]);                                          \
        return vf_load(v);                                                                         \
    }
RK_OF_16(vf_largest_of, vf_largest)
RK_OF_16(vf_sum_of, vf_sum)
#endif

/* The first n < 16 floats, zeros behind them. */
INLINE vf vf_load_part(const float *p, int n) {
    float v[16] = {0};
    memcpy(v, p, (size_t)n * 4);
    return vf_load(v);
}

/* e^x within 2 ulp for |x| below 87; held at e^-87 and about e^88.7 outside; NaN stays. Cephes'
 * polynomial after taking away whole multiples of ln 2. */
INLINE vf vf_exp(vf x) {
    vf low = vf_set(-87.0f), high = vf_set(88.7f);
    vf y = vf_min(high, vf_max(low, x)); /* the second operand wins where it is NaN */
    vf n = vf_round(vf_mul(y, vf_set(1.44269504088896341f)));
    n = vf_min(vf_set(127.0f), n);
    vf r = vf_fma(n, vf_set(-0.693359375f), y);
    r = vf_fma(n, vf_set(2.12194440e-4f), r);
    vf p = vf_set(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set(5.0000001201e-1f));
    p = vf_add(vf_fma(p, vf_mul(r, r), r), vf_set(1.0f));
    return vf_mul(p, vf_exp2i(n));
}

#if RK_ISA == 0
INLINE vf vf_rounded_bf16(vf x) {
    bf16 packed[16];
    vf_store_bf16(packed, x);
    return vf_load_bf16(packed);
}
#endif

/* Tensors come as float32 or bfloat16; `half` says which. */
INLINE vf load_any(const void *p, int64_t i, int half) {
    return half ? vf_load_bf16((const bf16 *)p + i) : vf_load((const float *)p + i);
}
INLINE void store_any(void *p, int64_t i, vf x, int half) {
    if (half) vf_store_bf16((bf16 *)p + i, x);
    else vf_store((float *)p + i, x);
}
INLINE float get_any(const void *p, int64_t i, int half) {
    return half ? bf16_to_float(((const bf16 *)p)[i]) : ((const float *)p)[i];
}
INLINE void put_any(void *p, int64_t i, float x, int half) {
    if (half) ((bf16 *)p)[i] = bf16_of(x);
    else ((float *)p)[i] = x;
}

#endif
