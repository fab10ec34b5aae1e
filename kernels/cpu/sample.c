/* Draws a token from each row of logits: mask, temperature, filters and choice in one go.
 *
 * The numbers of a row depend on that row alone. Weights are e^((x - largest) / temperature); a
 * filter keeps a prefix of them in falling order, equal ones by token id:
 *
 *   weights    bucket 0x3f80 | 0x3f7f | ... by the upper half of a float's bits: falling values
 *   count, sum       of each bucket; only the one in which the prefix ends is sorted
 *
 * and the token is the first, by id, where the kept weights add up to more than `point` of their sum.
 */
#include <math.h>
#include <stdlib.h>

#include "ops.h"
#include "vec.h"

#define BUCKETS 0x3f81 /* weights are at most 1 */
#define SETTINGS 5     /* temperature, top_k, top_p, min_p, point */

enum { CHOSEN, NOT_FINITE, NONE_ALLOWED };

typedef struct {
    float value;
    int32_t id;
} weight;

typedef struct {
    double *sums; /* of 16 weights each */
    double *mass; /* of a bucket */
    int32_t *count;
    weight *sorted; /* of one bucket */
} room;

/* The largest, NaN if any is NaN. */
static float peak_of(const float *x, int64_t n) {
    vf best[4], nan[4], one = vf_set(1), low = vf_set(-1);
    int64_t i = 0;
    for (int j = 0; j < 4; j++) best[j] = vf_set(-INFINITY), nan[j] = vf_set(0);
    for (; i + 64 <= n; i += 64)
        for (int j = 0; j < 4; j++) {
            vf v = vf_load(x + i + 16 * j);
            best[j] = vf_max(best[j], v);
            nan[j] = vf_add(nan[j], vf_min(one, vf_max(low, v))); /* which keep NaN */
        }
    vf largest = vf_max(vf_max(best[0], best[1]), vf_max(best[2], best[3]));
    float peak = -INFINITY, poison = vf_sum(vf_add(vf_add(nan[0], nan[1]), vf_add(nan[2], nan[3])));
    if (i) peak = vf_largest(largest);
    for (; i < n; i++) {
        peak = x[i] > peak ? x[i] : peak;
        if (x[i] != x[i]) poison = x[i];
    }
    return poison != poison ? poison : peak;
}

/* -inf where a bit is 0, and beyond the words. */
static void forbid(float *x, int64_t n, const uint32_t *mask, int64_t words) {
    for (int64_t w = 0; w * 32 < n; w++) {
        uint32_t word = w < words ? mask[w] : 0;
        int64_t count = n - w * 32 < 32 ? n - w * 32 : 32;
        if (word == 0xffffffffu) continue;
        for (int64_t i = 0; i < count; i++) x[w * 32 + i] = word >> i & 1 ? x[w * 32 + i] : -INFINITY;
    }
}

/* x to weights, 0 for what is e^-87 of the largest or less. */
static void weigh(float *x, int64_t n, float peak, float temperature) {
    vf top = vf_set(peak), divisor = vf_set(temperature), least = vf_exp(vf_set(-INFINITY));
    for (int64_t i = 0; i < n; i += 16) {
        int count = n - i < 16 ? (int)(n - i) : 16;
        float v[16];
        vf y = count == 16 ? vf_load(x + i) : vf_load_part(x + i, count);
        vf_store(v, vf_sub(vf_exp(vf_div(vf_sub(y, top), divisor)), least));
        memcpy(x + i, v, (size_t)count * 4);
    }
}

/* Sums of 16 weights each; returns the sum of those. */
static double add_up(const float *x, int64_t n, double *sums) {
    double total = 0;
    for (int64_t i = 0; i < n; i += 16) {
        int count = n - i < 16 ? (int)(n - i) : 16;
        sums[i / 16] = vf_sum(count == 16 ? vf_load(x + i) : vf_load_part(x + i, count));
        total += sums[i / 16];
    }
    return total;
}

static int32_t bucket_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (int32_t)(bits >> 16);
}

static int falling(const void *a, const void *b) {
    const weight *x = a, *y = b;
    if (x->value != y->value) return x->value < y->value ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int64_t sort_bucket(const float *x, int64_t n, int32_t bucket, float least, weight *to) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        if (bucket_of(x[i]) == bucket && x[i] >= least) to[count++] = (weight){x[i], (int32_t)i};
    qsort(to, (size_t)count, sizeof(weight), falling);
    return count;
}

/* The last of the prefix: at most `most` weights, none after their sum has reached `target`. */
static weight last_of(const float *x, int64_t n, const room *r, float least, int64_t most,
                      double target, double *sum) {
    weight last = {INFINITY, -1};
    int64_t taken = 0;
    *sum = 0;
    for (int32_t b = BUCKETS - 1; b >= 0 && taken < most && *sum < target; b--) {
        if (!r->count[b]) continue;
        int whole = taken + r->count[b] < most && *sum + r->mass[b] < target;
        if (whole) {
            taken += r->count[b], *sum += r->mass[b];
            last = (weight){0, -1};
            uint32_t bits = (uint32_t)b << 16; /* all of the bucket: what is not below it */
            memcpy(&last.value, &bits, 4);
            last.id = INT32_MAX;
            continue;
        }
        int64_t count = sort_bucket(x, n, b, least, r->sorted);
        for (int64_t i = 0; i < count && taken < most && *sum < target; i++)
            last = r->sorted[i], taken++, *sum += last.value;
    }
    return last;
}

/* Set to 0 what top_k, top_p and min_p leave out; `total` is the sum of all. */
static void filter(float *x, int64_t n, const double *s, double total, const room *r) {
    int64_t top_k = s[1] > 0 && s[1] < (double)n ? (int64_t)s[1] : n;
    float least = (float)s[3];
    /* What is below this together is less than half of what top_p leaves out. */
    if (least <= 0 && top_k == n && s[2] < 1 - 1e-4)
        least = (float)((1 - s[2]) / (2 * (double)n) * total);
    if (!(least > 0)) least = 1e-45f; /* weights of 0 are not looked at */
    memset(r->count, 0, BUCKETS * sizeof(int32_t));
    memset(r->mass, 0, BUCKETS * sizeof(double));
    for (int64_t i = 0; i < n; i++)
        if (x[i] >= least) r->count[bucket_of(x[i])]++, r->mass[bucket_of(x[i])] += x[i];
    double sum = total;
    weight last = {0, 0};
    if (top_k < n || s[3] > 0) last = last_of(x, n, r, least, top_k, INFINITY, &sum);
    if (s[2] < 1) last = last_of(x, n, r, least, top_k, s[2] * sum, &sum);
    for (int64_t i = 0; i < n; i++) {
        int keep = x[i] >= least && (x[i] > last.value || (x[i] == last.value && i <= last.id));
        x[i] = keep ? x[i] : 0;
    }
}

/* The first where the weights so far are more than `target`; never one of weight 0. */
static int64_t pick(const float *x, int64_t n, const double *sums, double target) {
    double sum = 0;
    int64_t block = 0, found = 0, blocks = (n + 15) / 16;
    for (int64_t b = 0; b < blocks; b++) {
        if (sums[b] > 0) block = b;
        if (sum + sums[b] > target) break;
        if (sums[b] > 0 && b + 1 < blocks) sum += sums[b];
    }
    for (int64_t i = 16 * block; i < n && i < 16 * block + 16; i++) {
        if (x[i] > 0) found = i;
        sum += x[i];
        if (x[i] > 0 && sum > target) break;
    }
    return found;
}

static int64_t draw(float *x, int64_t n, const double *s, float peak, const room *r) {
    weigh(x, n, peak, (float)s[0]);
    double total = add_up(x, n, r->sums);
    if ((s[1] > 0 && s[1] < (double)n) || s[2] < 1 || s[3] > 0) {
        filter(x, n, s, total, r);
        total = add_up(x, n, r->sums);
    }
    return pick(x, n, r->sums, s[4] * total);
}

static void choose(float *x, int64_t n, const uint32_t *mask, int64_t words, const double *s,
                   int64_t *out, const room *r) {
    float peak = peak_of(x, n);
    out[0] = 0;
    out[1] = peak - peak == 0 ? CHOSEN : NOT_FINITE;
    if (out[1] == CHOSEN && mask) {
        forbid(x, n, mask, words);
        peak = peak_of(x, n);
        if (peak == -INFINITY) out[1] = NONE_ALLOWED;
    }
    if (out[1] != CHOSEN) return;
    if (s[0] > 0) {
        out[0] = draw(x, n, s, peak, r);
        return;
    }
    while (x[out[0]] != peak) out[0]++;
}

static size_t rounded_up(size_t bytes) { return (bytes + 63) / 64 * 64; }

/* 0 logits float32, overwritten, 1 row stride, 2 rows, 3 vocab, 4 addresses of masks int64 [rows],
 * each 0 or uint32 [words], 5 words, 6 settings double [rows, 5], 7 out int64 [rows, 2]: token,
 * and what came of it
 */
void rk_sample(const int64_t *arg, rk_thread *t) {
    int64_t n = INT(3), first, last;
    size_t sums = rounded_up((size_t)(n + 15) / 16 * 8), mass = rounded_up(BUCKETS * 8);
    size_t count = rounded_up(BUCKETS * 4), sorted = rounded_up((size_t)n * sizeof(weight));
    char *memory = rk_scratch(t, sums + mass + count + sorted);
    room r = {(double *)memory, (double *)(memory + sums), (int32_t *)(memory + sums + mass),
              (weight *)(memory + sums + mass + count)};
    rk_share(t, INT(2), &first, &last);
    for (int64_t row = first; row < last; row++) {
        const uint32_t *mask = (const uint32_t *)(intptr_t)PTR(int64_t, 4)[row];
        choose(PTR(float, 0) + row * INT(1), n, mask, INT(5), PTR(double, 6) + row * SETTINGS,
               PTR(int64_t, 7) + 2 * row, &r);
    }
}
