/* Attention over KV pages by the items of a plan: no gather, each page read once an item.
 *
 * One split of an item (R rows: the queries of its members times the heads that share a KV head):
 *
 *   keys, 64 at a time, turned so that a column is a key      scores [R][256]
 *   each row: mask, largest, exponentials, their sum          weights [R][256]
 *   values, 64 at a time                                      out [R][dim]
 *   fold (largest, sum, out) into the row's running triple
 *
 * Each score, weight and output is computed by the same instructions in the same order whatever R
 * is, where the pages are and which keys other rows see.
 *
 * Over bfloat16 pages, machines that multiply bfloat16 pairs do so: queries and weights are rounded
 * to bfloat16, as the keys and values that they meet are; where there is a matrix unit, it does
 * (amx_attention.h). Otherwise all is float32, and what is narrower in the pages is widened first.
 */
#include "ops.h"
#include "amx_attention.h"
#include "direct.h"
#include "few_bits.h"
#include "softmax.h"
#include "tile.h"

/* Fold one split's triple into a running one. */
static void fold(int64_t dim, const float *out, float top, float sum, float *run, float *run_top,
                 float *run_sum) {
    if (top == -INFINITY) return; /* nothing of it is visible */
    float best = *run_top > top ? *run_top : top, gaps[16] = {*run_top - best, top - best};
    vf_store(gaps, vf_exp(vf_load(gaps)));
    float old = *run_top == -INFINITY ? 0 : gaps[0], new = gaps[1];
    vf old_share = vf_set(old), new_share = vf_set(new);
    for (int64_t d = 0; d < dim; d += 16) {
        vf added = vf_mul(vf_load(out + d), new_share);
        vf_store(run + d, vf_fma(vf_load(run + d), old_share, added));
    }
    *run_sum = *run_sum * old + sum * new;
    *run_top = best;
}

/* Addresses of the keys, or values, of a step. */
INLINE void find_any(const call *c, space *s, const int is_value, int32_t row, int64_t head,
                     int64_t first, int64_t end, const char **to) {
    if (c->bits) find_few(c, s, is_value, row, head, first, end, to);
    else find_rows(c, s, is_value ? c->v_pages : c->k_pages, row, head, first, end, to);
}

INLINE void widen_any(const call *c, space *s, const int is_value) {
    if (c->bits) widen_few(c, s, is_value);
    else widen_rows(c, s);
}

/* The keys that follow the last values of a split, as rows ahead: of the next split, head or item. */
static void find_following(const call *c, space *s) {
    const rk_item *item = s->next;
    int64_t end = item ? c->plan->lengths[item->row] : 0;
    if (item) find_any(c, s, 0, item->row, s->next_head, s->next_split * SPLIT, end, s->ahead_of);
    else for (int64_t i = 0; i < STEP; i++) s->ahead_of[i] = (const char *)s->zeros;
}

static void run_split(const call *c, space *s, const rk_item *item, int64_t head, int64_t split) {
    const rk_member *members = c->plan->members + item->first_member;
    int64_t count = item->end_member - item->first_member, rows = count * c->group;
    int64_t begin = split * SPLIT, end = 0;
    for (int64_t m = 0; m < count; m++) {
        int64_t to = members[m].position + 1 - begin;
        if (to + begin > end) end = to + begin;
        for (int64_t r = m * c->group; r < (m + 1) * c->group; r++)
            s->from[r] = c->window ? (int32_t)(to - c->window) : 0, s->to[r] = (int32_t)to;
    }
    if (end > begin + SPLIT) end = begin + SPLIT;
    int directly = !c->amx && takes_directly(c, rows);
    /* Keys of one tile are met once: they are widened there and not staged wide. */
    int as_words = RK_ISA == 256 && c->type == PAGES_BF16 && rows_of_tile(rows) == rows;
    int64_t staged = end > begin ? (end - begin + STEP - 1) / STEP * STEP : 0;
    for (int64_t key = 0; key < staged; key += STEP) {
        int last = key + STEP >= staged;
        find_any(c, s, 0, item->row, head, begin + key, end, s->row_of);
        find_any(c, s, last, item->row, head, last ? begin : begin + key + STEP, end, s->ahead_of);
        if (c->amx && rows <= FEW_ROWS) {
            scores_of_few(c, s, rows, key);
            continue;
        }
        widen_any(c, s, 0);
        stage_keys(c, s, as_words);
        if (c->amx) scores_of_many(c, s, rows, key);
        else if (c->pairs) all_scores(PAIRS, c, s, rows, key);
        else if (as_words) all_scores(LOWER, c, s, rows, key);
        else all_scores(PLAIN, c, s, rows, key);
    }
    /* The first values have been asked for: softmax asks for those that follow. */
    s->later = c->amx && rows <= FEW_ROWS && staged > STEP;
    if (s->later) find_any(c, s, 1, item->row, head, begin + STEP, end, s->ahead_of);
    soften(c, s, rows, staged);
    memset(s->out, 0, (size_t)(rows * c->dim) * 4);
    for (int64_t key = 0; key < staged; key += STEP) {
        int last = key + STEP >= staged;
        find_any(c, s, 1, item->row, head, begin + key, end, s->row_of);
        if (last) find_following(c, s);
        else find_any(c, s, 1, item->row, head, begin + key + STEP, end, s->ahead_of);
        if (c->amx) {
            amx_values(c, s, rows, key);
            continue;
        }
        if (c->bits || !directly) widen_any(c, s, 1);
        if (directly) {
            values_directly(c, s, rows, key);
            continue;
        }
        stage_values(c, s);
        if (c->pairs) all_values(PAIRS, c, s, rows, key);
        else all_values(PLAIN, c, s, rows, key);
    }
}

/* Where a saved triple lies: by (part, head) or by (token, head). */
static float *triple(const call *c, float *store, int64_t index, int64_t head, int64_t g) {
    const rk_plan *plan = c->plan;
    return store + ((index * plan->kv_heads + head) * c->group + g) * (c->dim + 2);
}

static void save(const call *c, float *to, const float *out, float top, float sum) {
    memcpy(to, out, (size_t)c->dim * 4);
    to[c->dim] = top;
    to[c->dim + 1] = sum;
}

static void begin_rows(const call *c, space *s, const rk_item *item, int64_t head) {
    int64_t count = (item->end_member - item->first_member) * c->group;
    for (int64_t m = item->first_member, r = 0; m < item->end_member; m++)
        for (int64_t g = 0; g < c->group; g++, r++) {
            int64_t token = c->plan->members[m].token, dim = c->dim;
            int64_t from = token * c->q_stride + (head * c->group + g) * dim;
            for (int64_t d = 0; d < dim; d += 16)
                store_any(s->query, r * dim + d, load_any(c->q, from + d, c->half_q), c->pairs);
            if (item->flags & ITEM_LOAD) {
                const float *state = triple(c, c->plan->state, token, head, g);
                memcpy(s->run + r * dim, state, (size_t)dim * 4);
                s->run_top[r] = state[dim];
                s->run_sum[r] = state[dim + 1];
            } else {
                memset(s->run + r * dim, 0, (size_t)dim * 4);
                s->run_top[r] = -INFINITY;
                s->run_sum[r] = 0;
            }
        }
    if (c->amx) turn_query(c, s, count < FEW_ROWS ? count : FEW_ROWS);
}

static void end_rows(const call *c, const space *s, const rk_item *item, int64_t head) {
    for (int64_t m = item->first_member, r = 0; m < item->end_member; m++)
        for (int64_t g = 0; g < c->group; g++, r++) {
            int64_t token = c->plan->members[m].token, dim = c->dim;
            const float *run = s->run + r * dim;
            if (item->flags & ITEM_STORE) {
                save(c, triple(c, c->plan->state, token, head, g), run, s->run_top[r], s->run_sum[r]);
                continue;
            }
            int64_t to = ((token * c->plan->kv_heads + head) * c->group + g) * dim;
            vf total = vf_set(s->run_sum[r]);
            for (int64_t d = 0; d < dim; d += 16) {
                vf out = c->amx ? outputs_in_order(run + d / 32 * 32, d % 32 != 0) : vf_load(run + d);
                store_any(c->out, to + d, vf_div(out, total), c->half_q);
            }
        }
}

/* One split of an item's head: computed, or read where it was saved by itself, and folded or saved. */
static void run_part(const call *c, space *s, const rk_item *item, int64_t head, int64_t split) {
    int64_t count = item->end_member - item->first_member;
    int64_t part = item->part + (split - item->first_split) * count;
    if (!(item->flags & ITEM_MERGE)) run_split(c, s, item, head, split);
    for (int64_t m = 0, r = 0; m < count; m++)
        for (int64_t g = 0; g < c->group; g++, r++) {
            float *saved = triple(c, c->plan->parts, part + m, head, g);
            if (item->flags & ITEM_PARTS)
                save(c, saved, s->out + r * c->dim, s->top[r], s->sum[r]);
            else if (item->flags & ITEM_MERGE)
                fold(c->dim, saved, saved[c->dim], saved[c->dim + 1], s->run + r * c->dim,
                     s->run_top + r, s->run_sum + r);
            else
                fold(c->dim, s->out + r * c->dim, s->top[r], s->sum[r], s->run + r * c->dim,
                     s->run_top + r, s->run_sum + r);
        }
}

/* Heads of an item, which take turns at each split: they lie together in its pages, and each new
 * page costs a look for where it lies. Behind them comes `then` in this piece, or NULL. */
static void run_heads(const call *c, space *s, const rk_item *item, int64_t head, int64_t end,
                      const rk_item *then, int64_t then_head) {
    int64_t rows = (item->end_member - item->first_member) * c->group;
    for (int64_t h = head; h < end; h++) {
        at_head(c, s, rows, h - head);
        begin_rows(c, s, item, h);
    }
    for (int64_t split = item->first_split; split < item->end_split; split++)
        for (int64_t h = head; h < end; h++) {
            int is_last = h + 1 == end, ends = is_last && split + 1 == item->end_split;
            s->next = ends ? then : item;
            s->next_head = ends ? then_head : is_last ? head : h + 1;
            s->next_split = ends ? (then ? then->first_split : 0) : split + is_last;
            at_head(c, s, rows, h - head);
            run_part(c, s, item, h, split);
        }
    for (int64_t h = head; h < end && !(item->flags & ITEM_PARTS); h++) {
        at_head(c, s, rows, h - head);
        end_rows(c, s, item, h);
    }
}

/* How many heads of an item take turns: one where the queries alone fill a near cache, and of those for
 * the matrix unit, whose way through the pages was measured head by head. */
static int64_t heads_together(const call *c, const rk_item *item) {
    int64_t rows = (item->end_member - item->first_member) * c->group;
    return !c->amx && rows * c->dim * c->plan->kv_heads <= HEADS_ROOM ? c->plan->kv_heads : 1;
}

/* 0 plan, 1 q, 2 row stride of q, 3 half of q and out, 4 out [tokens, heads, dim], 5 k_pages,
 * 6 v_pages, 7 type of the pages (ops.h), 8 scale, 9 softcap or 0, 10 window or 0; where there are
 * pages in few bits, and those before are plain: 11 codes of keys, 12 of values, 13 how many pages,
 * 14 bits, otherwise 0
 */
void rk_attention(const int64_t *arg, rk_thread *t) {
    const rk_plan *plan = PTR(rk_plan, 0);
    call c = {.q = PTR(void, 1), .q_stride = INT(2), .out = PTR(void, 4), .k_pages = PTR(void, 5),
              .v_pages = PTR(void, 6), .plan = plan, .dim = plan->dim, .group = plan->group,
              .half_q = (int)INT(3), .type = (int)INT(7), .scale = FLOAT(8), .softcap = FLOAT(9),
              .window = (int32_t)INT(10), .k_codes = PTR(void, 11), .v_codes = PTR(void, 12),
              .num_codes = INT(13), .bits = (int)INT(14), .plain_type = (int)INT(7)};
    if (c.bits) c.type = PAGES_F32; /* what rows are made to */
    c.pairs = RK_DPBF16 && c.type == PAGES_BF16;
    c.amx = takes_amx(&c);
    c.row_bytes = rk_row_bytes(c.dim, c.plain_type);
    space s = {0};
    size_t bytes = carve(&c, &s, NULL, MAX_MEMBERS * c.group);
    carve(&c, &s, rk_scratch(t, bytes), MAX_MEMBERS * c.group);
    memset(s.zeros, 0, (size_t)c.dim * 4);
    int64_t before = t->phase ? plan->phase_ends[t->phase - 1] : 0, first, last;
    rk_share(t, (plan->phase_ends[t->phase] - before) * plan->kv_heads, &first, &last);
    const rk_item *items = plan->items + before;
    for (int64_t n = first, heads = plan->kv_heads, next; n < last; n = next) {
        int64_t head = n % heads, end = head + heads_together(&c, items + n / heads);
        if (end > heads) end = heads;
        if (end > head + last - n) end = head + last - n;
        next = n + end - head;
        run_heads(&c, &s, items + n / heads, head, end, next < last ? items + next / heads : NULL,
                  next % heads);
    }
    amx_end(&s);
}

int64_t rk_attention_phases(const int64_t *arg) { return PTR(rk_plan, 0)->num_phases; }

int64_t rk_attention_pieces(const int64_t *arg, int64_t phase) {
    const rk_plan *plan = PTR(rk_plan, 0);
    return (plan->phase_ends[phase] - (phase ? plan->phase_ends[phase - 1] : 0)) * plan->kv_heads;
}
