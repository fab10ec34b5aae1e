/* Operations that touch each number once: norm, rotation, gate, KV write, bitmask, row gather.
 * `half` arguments are 1 for bfloat16, 0 for float32. */
#include "ops.h"
#include "vec.h"

/* Up to 16 numbers of which `left` are left, zeros behind them. */
INLINE vf load_some(const void *p, int64_t i, int half, int64_t left) {
    if (left >= 16) return load_any(p, i, half);
    float v[16] = {0};
    for (int64_t j = 0; j < left; j++) v[j] = get_any(p, i + j, half);
    return vf_load(v);
}
INLINE void store_some(void *p, int64_t i, vf x, int half, int64_t left) {
    if (left >= 16) {
        store_any(p, i, x, half);
        return;
    }
    float v[16];
    vf_store(v, x);
    for (int64_t j = 0; j < left; j++) put_any(p, i + j, v[j], half);
}

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
        int64_t from = row / group * stride + row % group * size, to = row * size;
        vf squares = vf_set(0);
        for (int64_t j = 0; j < size; j += 16) {
            vf v = load_some(x, from + j, half, size - j);
            if (residual) {
                v = vf_add(v, load_some(residual, to + j, half, size - j));
                store_some(total, to + j, v, half, size - j);
                if (half) v = vf_rounded_bf16(v);
            }
            vf_store(wide + j, v);
            squares = vf_fma(v, v, squares);
        }
        vf scale = vf_set(1.0f / sqrtf(vf_sum(squares) / (float)size + eps));
        for (int64_t j = 0; j < size; j += 16) {
            vf y = vf_mul(vf_load(wide + j), scale);
            if (half) y = vf_rounded_bf16(y);
            y = vf_mul(y, load_some(weight, j, half, size - j));
            store_some(out, to + j, y, half, size - j);
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
        for (int64_t i = 0; i < middle; i += 16) {
            int64_t left = middle - i, j = middle + i;
            vf a = load_some(x, from + i, half, left), b = load_some(x, from + j, half, left);
            vf c1 = load_some(c, i, 0, left), s1 = load_some(s, i, 0, left);
            vf c2 = load_some(c, j, 0, left), s2 = load_some(s, j, 0, left);
            store_some(out, to + i, vf_sub(vf_mul(a, c1), vf_mul(b, s1)), half, left);
            store_some(out, to + j, vf_add(vf_mul(b, c2), vf_mul(a, s2)), half, left);
        }
    }
}

/* One row to a page's type; int8 with its scale behind it. */
static void put_row(const void *x, int64_t from, int half, char *to, int64_t dim, int type) {
    if (type == PAGES_F16) {
        for (int64_t i = 0; i < dim; i++) ((f16 *)to)[i] = f16_of(get_any(x, from + i, half));
        return;
    }
    if (type != PAGES_I8) {
        for (int64_t i = 0; i < dim; i += 16)
            store_some(to, i, load_some(x, from + i, half, dim - i), type == PAGES_BF16, dim - i);
        return;
    }
    vf most = vf_set(0), none = vf_set(0);
    for (int64_t i = 0; i < dim; i += 16) {
        vf v = load_some(x, from + i, half, dim - i);
        most = vf_max(most, vf_abs(v));
        none = vf_fma(v, vf_set(0), none); /* NaN if any is NaN or infinite */
    }
    float largest = vf_largest(most), poison = vf_sum(none) == 0 ? 0 : NAN;
    float scale = largest / 127.0f, inverse = scale > 1e-30f && poison == 0 ? 1.0f / scale : 0.0f;
    for (int64_t i = 0; i < dim; i += 16) {
        int8_t codes[16];
        vf v = load_some(x, from + i, half, dim - i);
        v = poison == 0 ? vf_round(vf_mul(v, vf_set(inverse))) : vf_set(0);
        vf_store_i8(codes, vf_max(vf_min(v, vf_set(127.0f)), vf_set(-127.0f)));
        memcpy(to + i, codes, (size_t)(dim - i < 16 ? dim - i : 16));
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
    int64_t row = first / chunks, i = first % chunks * 16;
    for (int64_t n = first; n < last; n++) {
        int64_t from = row * 2 * size + i, left = size - i;
        vf g = load_some(x, from, half, left), up = load_some(x, from + size, half, left);
        vf y = vf_div(g, vf_add(vf_set(1), vf_exp(vf_sub(vf_set(0), g))));
        store_some(out, row * size + i, vf_mul(y, up), half, left);
        i += 16;
        if (i >= size) row++, i = 0;
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
