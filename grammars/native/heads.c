/* Masks of what stands before a mark, such as the inside of a string before its quote: the vocabulary
   is walked once for what comes before, and then only for what leaves it, whatever is behind the mark.
   The same text is often read at many places.

   What comes before the mark is a state as well, that of the same stacks with LOOP_END in the mark's
   place. Its slice has the tokens that stay before the mark, and the exits from it by their byte. It
   serves if no byte that the mark begins with could also go on before it. */
#include "engine.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_ABOVE = 12, MAX_MEMBERS = 64, NARROW = 4, LOOK_FOR_LOOP = 128 };

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

static u32 note_tokens(Engine *e, Slice *s, u32 from, u32 end, u32 state) {
    const Trie *t = &e->trie;
    u32 before = e->hits.n;
    for (u32 i = from; i < end; i++) TOKENS_AT(t, i, k) PUSH(e, e->hits, (u32)k);
    if (e->hits.n == before) return end;
    u32 cost = state_cost(e, state);
    if (cost > s->dearest) s->dearest = cost;
    return end;
}

static void sort_out(Engine *e, Slice *s, ExitList *exits) {
    const Trie *t = &e->trie;
    u32 stays = 0, loop = DEAD;
    u64 in_loop = 0; /* as in masks.c */
    RESERVE(e, e->loop_path, t->max_depth + 2);
    e->loop_path.p[0] = s->start;
    for (u32 i = 1; i < t->num_nodes;) {
        u32 level = (u32)t->depth[i] - 1, byte = t->byte[i], here = e->loop_path.p[level];
        u32 next = step(e, here, byte), end = i + (u32)t->size[i];
        int ends = (e->states.p[here].flags & S_ENDS) != 0;
        e->steps++;
        if (next == DEAD) {
            if (ends) PUSH(e, *exits, ((Exit){i, 0}));
            i = end;
            continue;
        }
        if (ends) s->first.w[byte >> 6] |= 1ull << (byte & 63);
        if (next == here && next != loop && ++stays % LOOK_FOR_LOOP == 0) {
            in_loop = groups_to(e, loop = next, next);
            if (ends) note_both(e, s, next);
        }
        int all = next == here && next == loop && !(t->groups[i] & ~in_loop);
        e->loop_path.p[level + 1] = next;
        i = note_tokens(e, s, i, all ? end : i + 1, next);
    }
}

static Slice *slice_before(Engine *e, u32 state) {
    if (e->states.p[state].slice) return e->slices.p[e->states.p[state].slice - 1];
    Slice *s = take(e, sizeof *s);
    PUSH(e, e->slices, s);
    u32 number = e->slices.n;
    s->item = EPS;
    s->start = state;
    s->usable = 1;
    s->rows = take(e, sizeof *s->rows);
    ExitList exits = {NULL, 0, 0};
    e->hits.n = 0;
    sort_out(e, s, &exits);
    s->rows[0] = add_hit_row(e);
    keep_exits(e, s, &exits);
    e->bytes -= exits.cap * sizeof *exits.p;
    DROP(exits);
    e->states.p[state].slice = number;
    return s;
}

static u32 record_before(Engine *e, u32 state, int width) {
    u32 mark, before = before_mark(e, state, width, &mark);
    if (before == DEAD) return NONE;
    Slice *s = slice_before(e, before);
    Mask after = first_bytes(e, state_of(e, mark));
    for (u32 w = 0; w < 4; w++)
        if (after.w[w] & s->first.w[w]) return NONE;
    return slice_record(e, s, 0, NONE, mark);
}

/* The record of a state that reads one text before one mark; NONE for any other. A mark of one byte,
   as a quote, is likelier to be one. */
u32 head_record(Engine *e, u32 state) {
    u32 record = record_before(e, state, 1);
    return record != NONE ? record : record_before(e, state, NARROW);
}
