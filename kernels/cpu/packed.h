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

/* Where the codes and scales of a tile lie, and how far the next tile's are. Meanwhile the bytes at
 * `ahead` are asked for, so many a group. */
typedef struct {
    const uint8_t *code;
    const char *scale;
    int64_t code_bytes, scale_bytes;
    const char *ahead;
    int64_t ahead_bytes;
} tile;

/* 16 scales or lows of a tile's group. */
INLINE vf load_scale(const char *p, const int half_scales) {
    return half_scales ? vf_load_f16((const f16 *)p) : vf_load((const float *)p);
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
