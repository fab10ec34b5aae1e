/* Masks of what stands before a mark, such as the inside of a string before its quote: the vocabulary
   is walked once for what comes before, and then only for what leaves it, whatever is behind the mark.
   The same text is often read at many places.

   What comes before the mark is a state as well, that of the same stacks with LOOP_END in the mark's
   place. Its slice has the tokens that stay before the mark, and the exits from it by their byte. It
   serves if no byte that the mark begins with could also go on before it. */
#include "walks.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_ABOVE = 12, MAX_MEMBERS = 64, NARROW = 4, SHORT_TEXT = 8, MAX_PARTS = 64, MAX_TRIED = 2000 };

/* ---- finding the mark ---------------------------------------------------------------------------- */

static int is_narrow(Engine *e, u32 tail, int width) {
    Mask first = first_bytes(e, state_of(e, tail));
    int size = mask_size(&first);
    return size > 0 && size <= width;
}

/* A stack below another, a concatenation that waited taken apart. */
static u32 below(Engine *e, u32 stack) {
    u32 tail = e->stacks.p[stack].tail;
    if (tail <= LOOP_END || tail & IS_SET) return tail;
    Stack s = e->stacks.p[tail];
    return e->nodes.p[s.head].kind == K_CAT ? push(e, s.head, s.tail) : tail;
}

/* The nearest tail below a stack that begins with so few bytes, NONE without one. */
static u32 mark_below(Engine *e, u32 stack, int width) {
    for (u32 i = 0; i < MAX_ABOVE && stack > LOOP_END && !(stack & IS_SET); i++) {
        if (e->nodes.p[e->stacks.p[stack].head].flags & F_RULES) return NONE;
        stack = below(e, stack);
        if (stack > LOOP_END && is_narrow(e, stack, width)) return stack;
    }
    return NONE;
}

/* A stack with LOOP_END in the place of `mark`; NONE where it does not stand on it. */
static u32 cut_at(Engine *e, u32 stack, u32 mark) {
    u32 heads[MAX_ABOVE + 1], n = 0;
    for (; stack != mark; stack = below(e, stack)) {
        if (stack <= LOOP_END || stack & IS_SET || n > MAX_ABOVE) return NONE;
        if (e->nodes.p[e->stacks.p[stack].head].flags & F_RULES) return NONE;
        heads[n++] = e->stacks.p[stack].head;
    }
    u32 cut = LOOP_END;
    while (n) cut = push(e, heads[--n], cut);
    return cut;
}

/* What a state reads before a mark, as a state; DEAD where its stacks do not stand on one mark. */
static u32 before_mark(Engine *e, u32 state, int width, u32 *mark) {
    u32 kernel = e->states.p[state].kernel, n = tail_count(e, kernel), cut[MAX_MEMBERS];
    if (n > MAX_MEMBERS) return DEAD;
    *mark = mark_below(e, tail_at(e, kernel, 0), width);
    for (u32 i = 0; i < n; i++) {
        cut[i] = *mark == NONE ? NONE : cut_at(e, tail_at(e, kernel, i), *mark);
        if (cut[i] == NONE) return DEAD;
    }
    return state_of(e, merge_stacks(e, cut, n));
}

/* ---- the slice ------------------------------------------------------------------------------------ */

/* The bytes that may go on before the mark in a state that may be at it. */
static void note_both(Engine *e, Slice *s, u32 state) {
    for (u32 byte = 0; byte < 256; byte++)
        if (step(e, state, byte) != DEAD) s->first.w[byte >> 6] |= 1ull << (byte & 63);
}

/* Collect in `hits` the tokens of a branch that stays in a state that a walk often stayed in; 0 if it does
   not. */
static int sort_branch(Engine *e, Slice *s, Loops *loops, u32 node, u32 state) {
    const Trie *t = &e->trie;
    if (t->nodes[node].groups & ~groups_in(e, loops, state)) return 0;
    if (e->states.p[state].flags & S_ENDS && !loops->noted[state % NUM_LOOPS]) note_both(e, s, state);
    loops->noted[state % NUM_LOOPS] = 1;
    u32 first = t->nodes[node].first, n = t->nodes[node + t->nodes[node].size].first - first;
    memcpy(e->hits.p + e->hits.n, t->order + first, n * sizeof *t->order);
    e->hits.n += n;
    return 1;
}

/* How many items a text touches that is made of them. */
static u32 items_in(Engine *e, const Slice *item, const u32 *text, u32 n) {
    u32 state = item->start, count = 0, whole = 1;
    for (u32 i = 0; i < n; i++) {
        count += whole;
        state = step(e, state, text[i]);
        if (!(e->states.p[state].flags & S_CLOSED)) close_state(e, state);
        whole = (e->states.p[state].flags & S_ENDS) != 0;
        if (whole) state = item->start;
    }
    return count;
}

/* Walk the whole trie; the tokens that stay before the mark go to `hits`. `item`: what the text is made of,
   counted at exits; NULL: not counted. */
static void sort_out(Engine *e, Slice *s, const Slice *item, ExitList *exits) {
    const Trie *t = &e->trie;
    Loops loops = {{DEAD}, {0}, {0}, {0}};
    e->met.n = 0;
    RESERVE(e, e->slice_levels, t->max_depth + 2);
    RESERVE(e, e->item_path, t->max_depth + 2); /* bytes */
    RESERVE(e, e->hits, t->num_tokens);
    u32 mark = ++e->mark, depth = 0;
    close_if_open(e, s->start);
    e->slice_levels.p[0] = (Level){0, t->nodes[1].kids, s->start, 0};
    while (depth != NONE) {
        Level *level = &e->slice_levels.p[depth];
        if (level->kid == level->end) {
            depth--;
            continue;
        }
        u32 kid = level->kid++, here = level->state, byte = t->kids.byte[kid], i = t->kids.node[kid];
        u32 next = step(e, here, byte), before = e->hits.n;
        int ends = (e->states.p[here].flags & S_ENDS) != 0;
        e->steps++;
        if (next == DEAD) {
            if (ends) PUSH(e, *exits, ((Exit){i, item ? items_in(e, item, e->item_path.p, depth) : 0, (u8)byte}));
            continue;
        }
        if (ends) s->first.w[byte >> 6] |= 1ull << (byte & 63);
        if (next != here || !sort_branch(e, s, &loops, i, next)) {
            TOKENS_AT(t, i, k) e->hits.p[e->hits.n++] = k;
            if (t->nodes[i].size > 1) {
                e->item_path.p[depth] = byte;
                close_if_open(e, next);
                e->slice_levels.p[++depth] = (Level){t->nodes[i].kids, t->nodes[i + 1].kids, next, 0};
            }
        }
        if (e->states.p[next].mark == mark || e->hits.n == before) continue;
        e->states.p[next].mark = mark;
        PUSH(e, e->met, next);
    }
    s->met = e->lists.n;
    RESERVE(e, e->lists, e->met.n);
    while (e->met.n) e->lists.p[e->lists.n++] = e->met.p[--e->met.n];
    s->num_met = e->lists.n - s->met;
}

static Slice *slice_before(Engine *e, u32 state, const Slice *item) {
    u32 known = e->states.p[state].slice;
    if (known && (!item || e->slices.p[known - 1]->item == item->item)) return e->slices.p[known - 1];
    Slice *s = take(e, sizeof *s);
    PUSH(e, e->slices, s);
    u32 number = e->slices.n;
    s->item = item ? item->item : EPS;
    s->start = state;
    s->usable = 1;
    e->hits.n = e->exits.n = 0;
    sort_out(e, s, item, &e->exits);
    s->row = add_hit_row(e);
    keep_exits(e, s, &e->exits);
    keep_counts(e, s, item);
    e->states.p[state].slice = number;
    return s;
}

/* Whether nothing that the mark begins with could also go on before it. */
static int stands_out(Engine *e, const Slice *s, u32 mark) {
    Mask after = first_bytes(e, state_of(e, mark));
    for (u32 w = 0; w < 4; w++)
        if (after.w[w] & s->first.w[w]) return 0;
    return 1;
}

static u32 record_before(Engine *e, u32 state, int width, int made) {
    u32 mark, before = before_mark(e, state, width, &mark);
    if (before == DEAD || !(made || e->states.p[before].slice)) return NONE;
    u32 record = e->states.p[before].slice ? NONE : short_record(e, state);
    if (record != NONE) return record;
    Slice *s = slice_before(e, before, NULL);
    return stands_out(e, s, mark) ? slice_record(e, s, 0, NONE, mark) : NONE;
}

/* The record of a state that reads one text before one mark; NONE for any other, and where the slice
   of that text is not there and not to be `made`. A mark of one byte, as a quote, is likelier to be
   one. */
u32 head_record(Engine *e, u32 state, int made) {
    u32 record = record_before(e, state, 1, made);
    return record != NONE ? record : record_before(e, state, NARROW, made);
}

/* ---- texts of a bounded length ------------------------------------------------------------------- */

/* An intersection without the bound from above of the first of its parts that counts items up to one:
   EMPTY where there is none. */
static u32 without_bound(Engine *e, Node both, Slice **item, u32 *high) {
    u32 parts[MAX_PARTS];
    *item = NULL;
    if (both.kind != K_AND || both.b > MAX_PARTS) return EMPTY;
    for (u32 i = 0; i < both.b; i++) {
        parts[i] = e->lists.p[both.a + i];
        Node part = e->nodes.p[parts[i]];
        if (part.kind == K_NOT) return EMPTY; /* masks.c has a way for these */
        if (part.kind != K_REP || part.c == NONE || *item) continue;
        if (!(*item = slice_of(e, part.a))) continue;
        *high = part.c;
        parts[i] = make_repeat(e, part.a, part.b, NONE);
    }
    if (!*item) return EMPTY;
    u32 free = make_and(e, parts, both.b);
    if (e->nodes.p[free].flags & F_BOOL) e->nodes.p[free].flags |= F_ALIVE; /* as the bounded one is */
    return free;
}

/* Strike the tokens of so many items that a text with them is known to be too long to be completed;
   those of which it is not known are tried. 0 where these are too many. */
static int strike_long(Engine *e, Slice *s, u32 state, u32 high) {
    const Trie *t = &e->trie;
    const Slice *all = s->counted;
    const u32 *inside = e->rows.p[s->row];
    u32 most = high < all->max_count ? high : all->max_count, dearest = dearest_of(e, s), tried = 0;
    u32 sure = high > dearest ? high - dearest : 0;
    if (sure >= most) return 1;
    for (u32 i = all->count_end[sure]; i < all->count_end[most]; i++) {
        u32 token = all->by_count[i], after = state;
        if (!(inside[token >> 5] >> (token & 31) & 1)) continue;
        if (++tried > MAX_TRIED) return 0;
        for (u32 k = t->offset[token]; k < t->offset[token + 1] && after != DEAD; k++) after = step(e, after, t->bytes[k]);
        if (after == DEAD) PUSH(e, e->hits, token);
        else weigh(e, after);
    }
    return 1;
}

/* The record of a state that reads a text of at most so many items before a mark: that without the
   bound, but for what is too long. So a text needs one slice, not one for each number of items left. */
u32 bounded_record(Engine *e, u32 state) {
    u32 kernel = e->states.p[state].kernel, high = 0;
    if (kernel & IS_SET || kernel <= LOOP_END) return NONE;
    Stack top = e->stacks.p[kernel];
    Slice *item;
    u32 free = without_bound(e, e->nodes.p[top.head], &item, &high);
    if (free == EMPTY || !is_narrow(e, top.tail, NARROW)) return NONE;
    u32 before = state_of(e, push(e, free, LOOP_END));
    u32 record = NONE; /* of a longer text each count is a state of its own, too many for a walk */
    if (high <= SHORT_TEXT && !e->states.p[before].slice) record = short_record(e, state);
    if (record != NONE) return record;
    Slice *s = slice_before(e, before, item);
    if (!stands_out(e, s, top.tail)) return NONE;
    slice_hits(e, s, 0, high, top.tail);
    u32 base = row_within(e, s, high);
    return strike_long(e, s, state, high) ? finish_record(e, base) : NONE;
}
