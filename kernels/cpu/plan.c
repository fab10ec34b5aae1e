/* Plans attention: cuts sequences into items and finds pages that several sequences share.
 *
 * Rows whose page tables begin alike form a tree. A stretch of splits that a group of rows has in
 * common is read once, for the queries of all of them, in the phase of its depth; the running result
 * of each query then waits, as it is, for the next stretch. Splits are folded in the order that a row
 * alone would take, so sharing changes no bit.
 *
 *   phase 0    | shared by rows 0 1 2 3          |
 *   phase 1                                      | shared by 0 1    |  2 alone  |  3 alone |
 *   phase 2                                                         | 0 | 1 |
 */
#include <stdlib.h>
#include <string.h>

#include "plan.h"

typedef struct {
    const int32_t *qo_indptr;
    int32_t window;
    int64_t threads; /* to keep busy */
    int failed;
    rk_plan *plan;
    int32_t *phase_of; /* of each item */
    int64_t max_phases;
} planner;

static void *grown(planner *p, void *old, int64_t *max, int64_t want, size_t size) {
    if (want <= *max) return old;
    int64_t next = *max * 2 > want ? *max * 2 : want;
    void *made = realloc(old, (size_t)next * size);
    if (!made) {
        p->failed = 1;
        return old;
    }
    *max = next;
    return made;
}

static void add_item(planner *p, rk_item item, int32_t phase) {
    rk_plan *plan = p->plan;
    int64_t max = plan->max_items;
    plan->items = grown(p, plan->items, &plan->max_items, plan->num_items + 1, sizeof(rk_item));
    p->phase_of = grown(p, p->phase_of, &max, plan->num_items + 1, sizeof(int32_t));
    if (p->failed) return;
    p->phase_of[plan->num_items] = phase;
    plan->items[plan->num_items++] = item;
    if (phase + 1 > plan->num_phases) plan->num_phases = phase + 1;
}

static void add_member(planner *p, int32_t token, int32_t position) {
    rk_plan *plan = p->plan;
    plan->members =
        grown(p, plan->members, &plan->max_members, plan->num_members + 1, sizeof(rk_member));
    if (!p->failed) plan->members[plan->num_members++] = (rk_member){token, position};
}

static int32_t first_position(const planner *p, int32_t row) {
    return p->plan->lengths[row] - (p->qo_indptr[row + 1] - p->qo_indptr[row]);
}

/* Whether two rows hold this split on the same pages, full and before all their queries. */
static int same_split(const planner *p, int32_t a, int32_t b, int32_t split) {
    const rk_plan *plan = p->plan;
    int64_t end = (int64_t)(split + 1) * SPLIT;
    if (first_position(p, a) < end || first_position(p, b) < end) return 0;
    int64_t from = (int64_t)split * SPLIT / plan->page_size, to = (end - 1) / plan->page_size;
    return memcmp(plan->kv_indices + plan->kv_indptr[a] + from,
                  plan->kv_indices + plan->kv_indptr[b] + from, (size_t)(to - from + 1) * 4) == 0;
}

/* Queries that an item takes of so many: fewer where threads would have nothing to do, though each
 * block then reads the keys for itself. */
static int64_t block_of(const planner *p, int64_t members) {
    int64_t block = MAX_MEMBERS;
    while (block > 4 && (members + block - 1) / block * p->plan->kv_heads < 2 * p->threads) block /= 2;
    return p->threads > 1 ? block : MAX_MEMBERS;
}

/* A stretch for the queries of these rows, in blocks; end_split < 0: to the end. */
static void add_stretch(planner *p, const int32_t *rows, int64_t count, int32_t from, int32_t end,
                        int32_t phase) {
    rk_plan *plan = p->plan;
    int flags = (from > 0 && !p->window ? ITEM_LOAD : 0) | (end >= 0 ? ITEM_STORE : 0);
    int64_t first = plan->num_members;
    for (int64_t i = 0; i < count; i++)
        for (int32_t q = p->qo_indptr[rows[i]]; q < p->qo_indptr[rows[i] + 1]; q++)
            add_member(p, q, first_position(p, rows[i]) + q - p->qo_indptr[rows[i]]);
    int64_t block = block_of(p, plan->num_members - first);
    for (int64_t begin = first; begin < plan->num_members && !p->failed; begin += block) {
        int64_t stop = begin + block < plan->num_members ? begin + block : plan->num_members;
        rk_item item = {flags, rows[0], from, end, (int32_t)begin, (int32_t)stop, 0};
        if (end < 0) item.end_split = plan->members[stop - 1].position / SPLIT + 1;
        if (p->window) {
            int32_t seen = plan->members[begin].position - p->window + 1;
            item.first_split = seen > 0 ? seen / SPLIT : 0;
        }
        add_item(p, item, phase);
    }
}

/* The rows of a group agree before split `from`; reorders `rows`. */
static void add_group(planner *p, int32_t *rows, int64_t count, int32_t from, int32_t phase) {
    int32_t end = from;
    if (count == 1 || p->failed) {
        add_stretch(p, rows, 1, from, -1, phase);
        return;
    }
    for (int same = 1; same;) {
        for (int64_t i = 1; i < count && same; i++) same = same_split(p, rows[0], rows[i], end);
        end += same;
    }
    if (end > from) add_stretch(p, rows, count, from, end, phase++);
    for (int64_t begin = 0, stop; begin < count; begin = stop) {
        stop = begin + 1; /* gather those that agree with the first one that is left */
        for (int64_t i = stop; i < count; i++)
            if (same_split(p, rows[begin], rows[i], end)) {
                int32_t moved = rows[i];
                rows[i] = rows[stop];
                rows[stop++] = moved;
            }
        add_group(p, rows + begin, stop - begin, end, phase);
    }
}

/* Few items and long sequences: cut the last stretches so that every thread has some.
 * The first piece folds; the others save each split, and a last phase folds those in order. */
static void spread(planner *p, int64_t threads) {
    rk_plan *plan = p->plan;
    int64_t count = plan->num_items, total = 0;
    int32_t last_phase = (int32_t)plan->num_phases;
    for (int64_t i = 0; i < count; i++) total += plan->items[i].end_split - plan->items[i].first_split;
    if (threads < 2 || count * plan->kv_heads >= 4 * threads) return;
    int64_t share = total * plan->kv_heads / (4 * threads);
    share = share < 1 ? 1 : share;
    for (int64_t i = 0; i < count && !p->failed; i++) {
        rk_item item = plan->items[i];
        int64_t members = item.end_member - item.first_member;
        if (item.flags & ITEM_STORE || item.end_split - item.first_split <= share || members > 4)
            continue;
        int32_t from = item.first_split + (int32_t)share, phase = p->phase_of[i];
        plan->items[i].end_split = from;
        plan->items[i].flags |= ITEM_STORE;
        rk_item merge = item;
        merge.first_split = from;
        merge.flags = ITEM_LOAD | ITEM_MERGE;
        merge.part = (int32_t)plan->num_parts;
        for (int32_t s = from; s < item.end_split; s += (int32_t)share) {
            rk_item part = item;
            part.flags = ITEM_PARTS;
            part.first_split = s;
            part.end_split = s + (int32_t)share < item.end_split ? s + (int32_t)share : item.end_split;
            part.part = (int32_t)plan->num_parts;
            plan->num_parts += (part.end_split - s) * members;
            add_item(p, part, phase);
        }
        add_item(p, merge, last_phase);
    }
}

/* Order the items by phase, stably. */
static void order(planner *p) {
    rk_plan *plan = p->plan;
    rk_item *sorted = malloc(sizeof(rk_item) * (size_t)(plan->num_items + 1));
    plan->phase_ends = calloc((size_t)plan->num_phases + 1, sizeof(int64_t));
    if (!sorted || !plan->phase_ends) {
        free(sorted);
        p->failed = 1;
        return;
    }
    int64_t at = 0;
    for (int64_t phase = 0; phase < plan->num_phases; phase++) {
        for (int64_t i = 0; i < plan->num_items; i++)
            if (p->phase_of[i] == phase) sorted[at++] = plan->items[i];
        plan->phase_ends[phase] = at;
    }
    free(plan->items);
    plan->items = sorted;
    plan->max_items = plan->num_items;
}

void rk_plan_free(rk_plan *plan) {
    if (!plan) return;
    free(plan->kv_indptr), free(plan->kv_indices), free(plan->lengths), free(plan->items);
    free(plan->members), free(plan->phase_ends), free(plan->state), free(plan->parts);
    free(plan);
}

static void *copied(const void *source, size_t bytes) {
    void *made = malloc(bytes ? bytes : 1);
    if (made && bytes) memcpy(made, source, bytes);
    return made;
}

static int copy_tables(rk_plan *plan, const int32_t *kv_indptr, const int32_t *kv_indices,
                       const int32_t *last_page_len) {
    size_t rows = (size_t)plan->num_rows;
    plan->kv_indptr = copied(kv_indptr, (rows + 1) * 4);
    plan->kv_indices = copied(kv_indices, (size_t)kv_indptr[rows] * 4);
    plan->lengths = copied(last_page_len, rows * 4);
    if (!plan->kv_indptr || !plan->kv_indices || !plan->lengths) return 0;
    for (size_t row = 0; row < rows; row++) {
        int64_t pages = kv_indptr[row + 1] - kv_indptr[row];
        if (pages) plan->lengths[row] += (int32_t)((pages - 1) * plan->page_size);
    }
    return 1;
}

static int allocate_results(rk_plan *plan) {
    size_t triple = (size_t)(plan->dim + 2) * 4, heads = (size_t)(plan->kv_heads * plan->group);
    int stores = 0;
    for (int64_t i = 0; i < plan->num_items; i++) stores |= plan->items[i].flags;
    if (stores & ITEM_STORE) {
        plan->state = malloc((size_t)plan->num_tokens * heads * triple);
        if (!plan->state) return 0;
    }
    plan->parts = malloc((size_t)plan->num_parts * heads * triple + 1);
    return plan->parts != NULL;
}

/* Whether the tables are ones that a plan can be made of; what is wrong is told by attention.py. */
int64_t rk_tables_fit(const int32_t *qo_indptr, const int32_t *kv_indptr, const int32_t *kv_indices,
                      const int32_t *last_page_len, int64_t num_rows, int64_t num_queries,
                      int64_t num_indices, int64_t num_pages, int64_t page_size) {
    if (qo_indptr[0] != 0 || qo_indptr[num_rows] != num_queries || kv_indptr[0] != 0) return 0;
    for (int64_t row = 0; row < num_rows; row++) {
        int64_t queries = (int64_t)qo_indptr[row + 1] - qo_indptr[row];
        int64_t pages = (int64_t)kv_indptr[row + 1] - kv_indptr[row], last = last_page_len[row];
        if (queries < 0 || pages < 0 || kv_indptr[row + 1] > num_indices) return 0;
        if (pages ? last < 1 || last > page_size : last != 0) return 0;
        if ((pages ? (pages - 1) * page_size + last : 0) < queries) return 0;
    }
    for (int64_t i = 0; i < kv_indptr[num_rows]; i++)
        if (kv_indices[i] < 0 || kv_indices[i] >= num_pages) return 0;
    return 1;
}

/* A plan, or NULL without memory. `share`: look for shared pages. `threads`: how many to keep busy.
 * The tables must have been checked: qo_indptr, kv_indptr [rows + 1], last_page_len [rows]. */
rk_plan *rk_plan_new(const int32_t *qo_indptr, const int32_t *kv_indptr, const int32_t *kv_indices,
                     const int32_t *last_page_len, int64_t num_rows, int64_t page_size,
                     int64_t kv_heads, int64_t group, int64_t dim, int64_t window, int64_t share,
                     int64_t threads) {
    rk_plan *plan = calloc(1, sizeof(rk_plan));
    if (!plan) return NULL;
    plan->num_rows = num_rows, plan->page_size = page_size, plan->kv_heads = kv_heads;
    plan->group = group, plan->dim = dim, plan->num_tokens = qo_indptr[num_rows];
    planner p = {.qo_indptr = qo_indptr, .window = (int32_t)window, .threads = threads,
                 .plan = plan};
    int32_t *rows = malloc((size_t)num_rows * 4 + 1);
    int64_t count = 0;
    if (!rows || !copy_tables(plan, kv_indptr, kv_indices, last_page_len)) p.failed = 1;
    for (int32_t row = 0; row < num_rows && !p.failed; row++)
        if (qo_indptr[row + 1] > qo_indptr[row]) rows[count++] = row;
    if (share && !window && count && !p.failed) {
        add_group(&p, rows, count, 0, 0);
    } else {
        for (int64_t i = 0; i < count; i++) add_stretch(&p, rows + i, 1, 0, -1, 0);
    }
    if (!p.failed) spread(&p, threads);
    if (!p.failed) order(&p);
    if (!p.failed && !allocate_results(plan)) p.failed = 1;
    free(rows), free(p.phase_of);
    if (p.failed) {
        rk_plan_free(plan);
        return NULL;
    }
    return plan;
}
