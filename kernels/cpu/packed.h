/* What the products with packed weights share: the forms of weights, and writing outputs. */
#ifndef RK_PACKED_H
#define RK_PACKED_H

#include "ops.h"
#include "vec.h"

/* X(name, bits of a code, group, has a low, scales are halves, zero), in the order of the `form`
 * argument; a weight is scale * (code - zero) + low. linear_packed.c draws how they lie. */
#define RK_FORMS(X)                                                                                \
    X(q4_0, 4, 32, 0, 1, 8)                                                                        \
    X(q4_1, 4, 32, 1, 1, 0)                                                                        \
    X(q5_0, 8, 32, 0, 1, 16)                                                                       \
    X(q5_1, 8, 32, 1, 1, 0)                                                                        \
    X(q8_0, 8, 32, 0, 1, 128)                                                                      \
    X(q4_k, 4, 32, 1, 0, 0)                                                                        \
    X(q5_k, 8, 32, 1, 0, 0)                                                                        \
    X(q6_k, 8, 16, 0, 0, 32)

/* What follows and is asked for meanwhile: bytes of two streams with each group of columns. */
typedef struct {
    const char *code, *scale;
    int64_t code_bytes, scale_bytes;
} ahead;

/* Where the codes and scales of a tile lie, and how far the next tile's are. */
typedef struct {
    const uint8_t *code;
    const char *scale;
    int64_t code_bytes, scale_bytes;
    ahead next;
} tile;

INLINE void ask_ahead(ahead *next) {
    for (int64_t i = 0; i < next->code_bytes; i += 64) __builtin_prefetch(next->code + i);
    for (int64_t i = 0; i < next->scale_bytes; i += 64) __builtin_prefetch(next->scale + i);
    next->code += next->code_bytes;
    next->scale += next->scale_bytes;
}

#define AHEAD 8192 /* bytes of codes: what memory delivers until the first of them is there */

/* With one pass over a tile, what lies AHEAD of it before the tile `end`: memory's own guesses end
 * with each 4 KiB. Arguments as in linear_packed.c. */
INLINE ahead after_tile(const int64_t *arg, int64_t n, int64_t end) {
    int64_t bytes = INT(3), scale_bytes = INT(4), groups = INT(10) / INT(11);
    if ((end - n - 1) * bytes < AHEAD) return (ahead){0};
    return (ahead){PTR(char, 0) + n * bytes + AHEAD,
                   PTR(char, 1) + n * scale_bytes + AHEAD * scale_bytes / bytes, bytes / groups,
                   scale_bytes / groups};
}

/* While two tiles meet rows 4 at a time, the two that follow: lines of them with each group of each
 * pass, until all are asked for. */
INLINE ahead after_two(const int64_t *arg, int64_t n, int64_t row, int64_t end) {
    int64_t groups = INT(10) / INT(11), turns = INT(9) / 4 * groups, before = row / 4 * groups;
    int64_t bytes = 2 * INT(3), scale_bytes = 2 * INT(4);
    if (n + 4 > end || !bytes) return (ahead){0};
    int64_t part = (bytes / turns + 63) / 64 * 64, scale_part = (scale_bytes / turns + 63) / 64 * 64;
    return (ahead){PTR(char, 0) + (n + 2) * INT(3) + before * part,
                   PTR(char, 1) + (n + 2) * INT(4) + before * scale_part,
                   before * part < bytes ? part : 0,
                   before * scale_part < scale_bytes ? scale_part : 0};
}

/* 16 scales or lows of a tile's group. */
INLINE vf load_scale(const char *p, const int half_scales) {
    return half_scales ? vf_load_f16((const f16 *)p) : vf_load((const float *)p);
}

/* Rows of outputs lie far apart: asked for when their sums are begun, `tiles` times 16 of each are
 * there when these are to be written. */
INLINE void ask_for_outputs(const void *out, int64_t at, int64_t rows, int64_t stride, int64_t tiles,
                            int half) {
    const int64_t size = half ? 2 : 4;
    const char *row = (const char *)out + at * size;
    for (int64_t r = 0; r < rows; r++, row += stride * size) {
        __builtin_prefetch(row, 1);
        if (tiles > 1) __builtin_prefetch(row + 16 * size, 1);
    }
}

/* The first `count` of 16 outputs, plus bias, to element `at` of out. */
INLINE void put_outputs(vf values, const float *bias, void *out, int64_t at, int64_t count,
                        int half) {
    if (count >= 16) {
        store_any(out, at, bias ? vf_add(values, vf_load(bias)) : values, half);
        return;
    }
    float v[16];
    vf_store(v, values);
    for (int64_t i = 0; i < count; i++) put_any(out, at + i, bias ? v[i] + bias[i] : v[i], half);
}

#endif
