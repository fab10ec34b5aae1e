/* Operations that touch each number once: norm, rotation, gate, KV write, bitmask, row gather.
 * `half` arguments are 1 for bfloat16, 0 for float32. */
#include "ops.h"
#include "vec.h"

/* out = x / sqrt(mean(x^2) + eps) * weight, and with a residual, total = x + residual first.
 * 0 x, 1 residual or 0, 2 total, 3 weight, 4 out, 5 rows, 6 size, 7 half, 8 eps, 9 x's row stride,
 * 10 group: each of x's rows is so many vectors of `size`, normed apart; the others hold them in
 * rows * group rows of `size`.
 */
void rk_norm(const int64_t *arg, rk_thread *t) {
    const void *x = PTR(void, 0), *residual = PTR(void, 1), *weight = PTR(void, 3);
    void *total = PTR(void, 2), *out = PTR(void, 4);
    int64_t size = INT(6), stride = INT(9), group = INT(10), first, last;
    int half = (int)INT(7);
    float eps = FLOAT(8), *wide = rk_scratch(t, (size_t)size * 4 + 64);
    rk_share(t, INT(5) * group, &first, &last);
    for (int64_t row = first; row < last; row++) {
        int64_t from = row / group * stride + row % group * size, to = row * size, i = 0;
        vf squares = vf_set(0);
        for (int64_t j = 0; j < size; j++) wide[j] = get_any(x, from + j, half);
        if (residual)
            for (int64_t j = 0; j < size; j++) {
                float sum = wide[j] + get_any(residual, to + j, half);
                put_any(total, to + j, sum, half);
                wide[j] = get_any(total, to + j, half);
            }
        for (; i + 16 <= size; i += 16) squares = vf_fma(vf_load(wide + i), vf_load(wide + i), squares);
        if (i < size) {
            vf part = vf_load_part(wide + i, (int)(size - i));
            squares = vf_fma(part, part, squares);
        }
        float scale = 1.0f / sqrtf(vf_sum(squares) / (float)size + eps);
        for (int64_t j = 0; j < size; j++) {
            float y = wide[j] * scale;
            if (half) y = bf16_to_float(bf16_of(y));
            put_any(out, to + j, y * get_any(weight, j, half), half);
        }
    }
}

/* Rotate heads: dimension i with i + dim / 2.
 * 0 x, 1 row stride of x, 2 out [rows, heads, dim], 3 cos, 4 sin [rows, dim] float32, 5 rows,
 * 6 heads, 7 dim, 8 half, 9 positions int64 [rows] or 0: which row of cos and sin.
 */
void rk_rope(const int64_t *arg, rk_thread *t) {
    const void *x = PTR(void, 0);
    void *out = PTR(void, 2);
    const float *cosines = PTR(float, 3), *sines = PTR(float, 4);
    const int64_t *positions = PTR(int64_t, 9);
    int64_t stride = INT(1), heads = INT(6), dim = INT(7), middle = dim / 2, first, last;
    int half = (int)INT(8);
    rk_share(t, INT(5) * heads, &first, &last);
    for (int64_t n = first; n < last; n++) {
        int64_t row = n / heads, from = row * stride + n % heads * dim, to = n * dim;
        const float *c = cosines + (positions ? positions[row] : row) * dim;
        const float *s = sines + (positions ? positions[row] : row) * dim;
        for (int64_t i = 0; i < middle; i++) {
            float a = get_any(x, from + i, half), b = get_any(x, from + middle + i, half);
            put_any(out, to + i, a * c[i] - b * s[i], half);
            put_any(out, to + middle + i, b * c[middle + i] + a * s[middle + i], half);
        }
    }
}

/* One row to a page's type; int8 with its scale behind it. */
static void put_row(const void *x, int64_t from, int half, char *to, int64_t dim, int type) {
    float largest = 0, poison = 0;
    if (type != PAGES_I8) {
        for (int64_t i = 0; i < dim; i++) {
            float value = get_any(x, from + i, half);
            if (type == PAGES_F16) ((f16 *)to)[i] = f16_of(value);
            else put_any(to, i, value, type == PAGES_BF16);
        }
        return;
    }
    for (int64_t i = 0; i < dim; i++) {
        float value = fabsf(get_any(x, from + i, half));
        if (!(value <= 3.402823466e38f)) poison = NAN;
        else if (value > largest) largest = value;
    }
    float scale = largest / 127.0f, inverse = scale > 1e-30f ? 1.0f / scale : 0.0f;
    for (int64_t i = 0; i < dim; i++) {
        float value = poison == 0 ? rintf(get_any(x, from + i, half) * inverse) : 0;
        to[i] = (char)(int8_t)(value > 127 ? 127 : value < -127 ? -127 : value);
    }
    scale = (inverse > 0 ? scale : 0) + poison;
    memcpy(to + dim, &scale, 4);
}

/* Store keys and values of tokens in their slots.
 * 0 k, 1 v, 2 row stride of k, 3 of v, 4 k_pages, 5 v_pages, 6 slots int64, 7 tokens, 8 heads,
 * 9 page size, 10 dim, 11 half of k and v, 12 type of the pages (ops.h).
 */
void rk_kv_write(const int64_t *arg, rk_thread *t) {
    const int64_t *slots = PTR(int64_t, 6);
    int64_t heads = INT(8), page_size = INT(9), dim = INT(10), first, last;
    int half = (int)INT(11), type = (int)INT(12);
    int64_t row_bytes = rk_row_bytes(dim, type);
    rk_share(t, INT(7), &first, &last);
    for (int64_t token = first; token < last; token++)
        for (int which = 0; which < 2; which++) {
            const void *x = PTR(void, which);
            char *pages = PTR(char, 4 + which);
            int64_t page = slots[token] / page_size, offset = slots[token] % page_size;
            for (int64_t head = 0; head < heads; head++) {
                int64_t from = token * INT(2 + which) + head * dim;
                int64_t to = ((page * heads + head) * page_size + offset) * row_bytes;
                put_row(x, from, half, pages + to, dim, type);
            }
        }
}

/* silu(gate) * up.  0 gate_up [rows, 2 * size], 1 out [rows, size], 2 rows, 3 size, 4 half. */
void rk_silu_mul(const int64_t *arg, rk_thread *t) {
    const void *x = PTR(void, 0);
    void *out = PTR(void, 1);
    int64_t size = INT(3), chunks = (size + 15) / 16, first, last;
    int half = (int)INT(4);
    rk_share(t, INT(2) * chunks, &first, &last);
    for (int64_t n = first; n < last; n++) {
        int64_t row = n / chunks, i = n % chunks * 16, from = row * 2 * size + i, to = row * size + i;
        int count = (int)(size - i < 16 ? size - i : 16);
        float gate[16] = {0}, up[16] = {0};
        if (count == 16) {
            vf_store(gate, load_any(x, from, half));
            vf_store(up, load_any(x, from + size, half));
        } else {
            for (int j = 0; j < count; j++) {
                gate[j] = get_any(x, from + j, half);
                up[j] = get_any(x, from + size + j, half);
            }
        }
        vf g = vf_load(gate), below = vf_exp(vf_sub(vf_set(0), g));
        vf y = vf_mul(vf_div(g, vf_add(vf_set(1), below)), vf_load(up));
        if (count == 16) {
            store_any(out, to, y, half);
        } else {
            vf_store(gate, y);
            for (int j = 0; j < count; j++) put_any(out, to + j, gate[j], half);
        }
    }
}

/* -inf where a bit is 0.  0 logits float32, 1 bitmask, 2 rows, 3 vocab, 4 words, 5 logits' stride. */
void rk_bitmask(const int64_t *arg, rk_thread *t) {
    const uint32_t *bitmask = PTR(uint32_t, 1);
    int64_t vocab = INT(3), words = INT(4), first, last;
    rk_share(t, INT(2) * words, &first, &last);
    for (int64_t n = first; n < last; n++) {
        uint32_t word = bitmask[n];
        float *logits = PTR(float, 0) + n / words * INT(5) + n % words * 32;
        int64_t left = vocab - n % words * 32;
        int count = left < 32 ? (int)left : 32;
        if (word == 0xffffffffu) continue;
        for (int i = 0; i < count; i++)
            if (!(word >> i & 1)) logits[i] = -INFINITY;
    }
}

/* Copies of rows.  0 table, 1 ids int64, 2 out, 3 rows, 4 bytes of a row. */
void rk_gather(const int64_t *arg, rk_thread *t) {
    const int64_t *ids = PTR(int64_t, 1);
    int64_t bytes = INT(4), first, last;
    rk_share(t, INT(3), &first, &last);
    for (int64_t row = first; row < last; row++)
        memcpy(PTR(char, 2) + row * bytes, PTR(char, 0) + ids[row] * bytes, (size_t)bytes);
}
