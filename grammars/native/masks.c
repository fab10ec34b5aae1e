/* The mask of a state: which tokens may come next.

   A mask is kept as a record (records.c). The ways to one: walk the trie; for a loop such as the inside
   of a JSON string, take the row of the loop and walk only what can follow it (slices.c); for an
   intersection with complements start from the mask without the complements and walk where the two differ,
   or only try the listed keys for a key that is none of them (others.c); likewise for a state that most
   bytes lead into a loop. Whatever reads plain characters on and on takes the row of these (closures.c). */
#include "engine.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_CHOICES = 64, DIFFERENCE_WALK = 40000, SHORT_WALK = 5000, MAX_UNION = 16, MAX_UNFOLDED = 2000, OPEN_STATE = 60, WIDE_LOOP = 60,
       ALL_CHARACTERS = 120, MAX_ASKED = 2000, MANY_COUNTS = 32 };

/* ---- choosing the way ------------------------------------------------------------------------ */

Mask first_bytes(Engine *e, u32 state) {
    Mask all = {{0}};
    if (!(e->states.p[state].flags & S_CLOSED)) close_state(e, state);
    State s = e->states.p[state];
    for (u32 i = 0; i < s.num_items; i++)
        for (u32 w = 0; w < 4; w++) all.w[w] |= e->masks.p[e->items.p[s.items + i].mask].w[w];
    return all;
}

static int is_open(Engine *e, u32 state) {
    Mask first = first_bytes(e, state);
    return mask_size(&first) >= OPEN_STATE;
}

static u32 walk_record(Engine *e, u32 state, u64 limit) {
    e->hits.n = 0;
    return walk(e, state, 0, limit) ? finish_record(e, 0) : NONE;
}

/* By a walk that is shorter than what else there is to find out; NONE without one. */
u32 short_record(Engine *e, u32 state) {
    return e->weigh ? NONE : walk_record(e, state, e->trie.num_nodes / 3);
}

/* The slice of a loop whose items and what follows it begin with different bytes, or NULL. */
Slice *usable_slice(Engine *e, Node loop, u32 tail) {
    Slice *slice = slice_of(e, loop.a);
    if (!slice) return NULL;
    Mask after = first_bytes(e, state_of(e, tail));
    for (u32 w = 0; w < 4; w++)
        if (after.w[w] & slice->first.w[w]) return NULL;
    return slice;
}

/* The record of a state; NONE where it is asked for on the way to itself, as loops within loops may do. */
u32 record_unasked(Engine *e, u32 state) {
    for (u32 i = 0; i < e->asked.n; i++)
        if (e->asked.p[i] == state) return NONE;
    return mask_record(e, state);
}

static u32 difference_from(Engine *e, u32 state, u32 other, u64 limit) {
    u32 known = record_unasked(e, other);
    e->hits.n = 0;
    return known != NONE && walk_difference(e, state, other, limit) ? add_difference(e, known) : NONE;
}

/* An intersection against itself without its complements. */
static u32 difference_record(Engine *e, Node both, u32 tail, u32 state, u64 limit) {
    u32 parts[64], n = 0;
    if (both.b > 64) return NONE;
    for (u32 i = 0; i < both.b; i++) {
        u32 part = e->lists.p[both.a + i];
        if (e->nodes.p[part].kind != K_NOT) parts[n++] = part;
    }
    if (n == 0 || n == both.b) return NONE;
    return difference_from(e, state, state_of(e, push(e, make_and(e, parts, n), tail)), limit);
}

/* The state that most bytes lead to, if it is a loop that most bytes stay in; else DEAD. */
static u32 common_loop(Engine *e, u32 state) {
    State s = e->states.p[state];
    u32 sizes[256] = {0}, best = 0;
    u8 byte_of[256];
    for (u32 byte = 0; byte < 256; byte++) {
        u8 class = e->maps.p[(size_t)s.map * 256 + byte];
        byte_of[class] = (u8)byte;
        if (++sizes[class] > sizes[best]) best = class;
    }
    u32 loop = step(e, state, byte_of[best]);
    if (loop == DEAD || loop == state || e->states.p[loop].kernel & IS_SET) return DEAD;
    u32 kernel = e->states.p[loop].kernel;
    if (kernel <= LOOP_END || e->nodes.p[e->stacks.p[kernel].head].kind != K_REP) return DEAD;
    return step(e, loop, byte_of[best]) == loop ? loop : DEAD;
}

/* Whether most tokens begin with one of these bytes: as with a blank, they do in most vocabularies. */
static int begins_most(const Trie *t, const Mask *first) {
    u32 covered = 0;
    for (u32 byte = 0; byte < 256; byte++)
        if (has(first, byte)) covered += t->below[byte];
    return covered > t->num_nodes / 4 * 3;
}

/* The widest loop without bound that a state may be in, whose items can begin with so many bytes; if
   it is not to be `made`, one that has been sliced before. Of a narrow one most tokens would be
   outside. */
static Slice *endless_loop(Engine *e, u32 state, int width, int made) {
    u32 kernel = e->states.p[state].kernel, best = NONE;
    for (u32 i = 0; i < tail_count(e, kernel); i++) {
        for (u32 stack = tail_at(e, kernel, i); stack > LOOP_END && !(stack & IS_SET);) {
            Stack s = e->stacks.p[stack];
            Node head = e->nodes.p[s.head];
            if (head.kind != K_REP) break;
            stack = head.b ? END : s.tail; /* where it may be left at once, what follows runs too */
            if (head.c != NONE || !(made || e->nodes.p[head.a].slice)) continue;
            Mask first = first_bytes(e, state_of(e, push(e, head.a, LOOP_END)));
            if (mask_size(&first) < width || !begins_most(&e->trie, &first)) continue;
            if (!slice_of(e, head.a)) continue;
            width = mask_size(&first) + 1;
            best = head.a;
        }
    }
    return best == NONE ? NULL : slice_of(e, best);
}

/* Whether a walk through a loop would make many states, one for each item left, wherever it stands: as
   blanks between values are. */
static int counts_many(const Engine *e, Node loop) {
    return loop.c != NONE && loop.c >= MANY_COUNTS && e->nodes.p[loop.a].kind == K_SET;
}

/* Whether one stands right behind a loop, which is better looked at by itself: see parts_record. */
static int counts_many_behind(const Engine *e, u32 tail) {
    for (u32 i = 0; i < tail_count(e, tail); i++) {
        u32 stack = tail_at(e, tail, i);
        Node head = e->nodes.p[stack > LOOP_END ? e->stacks.p[stack].head : EMPTY];
        if (head.kind == K_CAT) head = e->nodes.p[head.a];
        if (head.kind == K_REP && counts_many(e, head)) return 1;
    }
    return 0;
}

/* Whether a loop with a bound, which has another mask at each place, is met again without a slice, and its
   items begin in ASCII: the exits of others are most of a vocabulary of many scripts. */
static int is_met_again(Engine *e, Node loop) {
    u8 *flags = &e->nodes.p[loop.a].flags;
    if (loop.c == NONE) return 0;
    if (!(*flags & F_ASKED)) {
        *flags |= F_ASKED;
        return 0;
    }
    Mask first = first_bytes(e, state_of(e, push(e, loop.a, LOOP_END)));
    return !first.w[2] && !first.w[3];
}

static u32 stack_record(Engine *e, u32 stack, u32 state) {
    if (stack == END || stack == LOOP_END) return NONE;
    Stack s = e->stacks.p[stack];
    Node head = e->nodes.p[s.head];
    if (head.kind == K_REP && !e->nodes.p[head.a].slice && !counts_many(e, head) && !is_met_again(e, head)) {
        if (counts_many_behind(e, s.tail)) return NONE;
        u32 record = is_open(e, state) ? closure_record(e, state) : NONE;
        if (record == NONE) record = short_record(e, state);
        if (record != NONE) return record;
    }
    Slice *slice = head.kind == K_REP ? usable_slice(e, head, s.tail) : NULL;
    if (slice) return slice_record(e, slice, head.b, head.c, s.tail);
    if (head.kind != K_AND) return NONE;
    u32 record = others_record(e, head, s.tail);
    if (record == NONE) record = bounded_record(e, state);
    if (record == NONE) record = head_record(e, state, 0);
    if (record == NONE) record = difference_record(e, head, s.tail, state, SHORT_WALK);
    if (record == NONE && is_open(e, state)) record = closure_record(e, state);
    return record != NONE ? record : difference_record(e, head, s.tail, state, DIFFERENCE_WALK);
}

/* Whether a loop was sliced, or begins with most tokens: of a narrow one a walk sees little. */
static int may_slice(Engine *e, Node loop) {
    if (e->nodes.p[loop.a].slice) return 1;
    Mask first = first_bytes(e, state_of(e, push(e, loop.a, LOOP_END)));
    return begins_most(&e->trie, &first);
}

/* Whether a stack allows much of the vocabulary and has a way of its own to say what. */
static int is_wide(Engine *e, u32 stack) {
    if (stack <= LOOP_END) return 0;
    Node head = e->nodes.p[e->stacks.p[stack].head];
    if (head.kind == K_REP) return may_slice(e, head) && usable_slice(e, head, e->stacks.p[stack].tail);
    int with = 0, without = 0;
    for (u32 i = 0; head.kind == K_AND && i < head.b; i++)
        if (e->nodes.p[e->lists.p[head.a + i]].kind == K_NOT) without = 1;
        else with = 1;
    return with && without;
}

static void append(Engine *e, u32 tail) {
    for (u32 i = 0; i < tail_count(e, tail); i++) PUSH(e, e->unfolded, tail_at(e, tail, i));
}

/* Put in place of a stack what it is a choice of: a rule's body, the parts of an alternative, one
   more or no more of a loop. 0: it is no choice. */
static int unfold_one(Engine *e, u32 stack) {
    Stack top = e->stacks.p[stack];
    Node head = e->nodes.p[top.head];
    if (stack <= LOOP_END) return 0;
    if (head.kind == K_RULE && e->rules.p[head.a].body != NONE) {
        append(e, push(e, e->rules.p[head.a].body, top.tail));
    } else if (head.kind == K_CAT) {
        append(e, push(e, top.head, top.tail));
    } else if (head.kind == K_ALT && head.b <= MAX_CHOICES) {
        for (u32 k = 0; k < head.b; k++) append(e, push(e, e->lists.p[head.a + k], top.tail));
    } else if (head.kind == K_REP) {
        u32 rest = make_repeat(e, head.a, head.b ? head.b - 1 : 0, head.c == NONE ? NONE : head.c - 1);
        append(e, push(e, head.a, push(e, rest, top.tail)));
        if (head.b == 0) append(e, top.tail);
    } else {
        return 0;
    }
    return 1;
}

static u32 wide_record(Engine *e, u32 stack) {
    u32 state = state_of(e, stack);
    if (e->states.p[state].record && !e->weigh) return e->states.p[state].record - 1;
    u32 record = stack_record(e, stack, state);
    if (record == NONE) record = head_record(e, state, 1);
    return record != NONE ? record : walk_record(e, state, ~0ull);
}

/* Whether a stack is unfolded to itself, among others: an endless loop of what may be empty is. */
static int leads_to_itself(const Engine *e, u32 stack) {
    Node head = e->nodes.p[stack > LOOP_END ? e->stacks.p[stack].head : EMPTY];
    return head.kind == K_REP && head.c == NONE && e->nodes.p[head.a].flags & F_NULLABLE;
}

/* 0: it is among them. */
static int add_once(u32 *stacks, u32 *n, u32 stack) {
    for (u32 i = 0; i < *n; i++)
        if (stacks[i] == stack) return 0;
    stacks[(*n)++] = stack;
    return 1;
}

/* The wide stacks that a state unfolds to each by itself, the others by one walk together. */
static u32 parts_record(Engine *e, u32 state) {
    u32 wide[MAX_UNION], loops[MAX_UNION], n = 0, num_loops = 0, narrow = 0;
    e->unfolded.n = 0;
    append(e, e->states.p[state].kernel);
    for (u32 rounds = 0; narrow < e->unfolded.n && n < MAX_UNION - 1 && num_loops < MAX_UNION; rounds++) {
        u32 stack = e->unfolded.p[narrow];
        if (rounds > MAX_UNFOLDED || e->unfolded.n > MAX_UNFOLDED) return NONE;
        int is_done = is_wide(e, stack);
        if (is_done) add_once(wide, &n, stack);
        else is_done = leads_to_itself(e, stack) && !add_once(loops, &num_loops, stack);
        if (!is_done && !unfold_one(e, stack)) {
            narrow++;
            continue;
        }
        e->unfolded.p[narrow] = e->unfolded.p[--e->unfolded.n];
    }
    if (n == 0) return NONE;
    u32 rest = e->unfolded.n ? state_of(e, merge_stacks(e, e->unfolded.p, e->unfolded.n)) : DEAD, records[MAX_UNION];
    if (rest != DEAD && is_open(e, rest) && endless_loop(e, state, ALL_CHARACTERS, 1)) return NONE; /* see open_record */
    for (u32 i = 0; i < n; i++) records[i] = wide_record(e, wide[i]);
    if (rest != DEAD && rest != state) {
        records[n] = walk_record(e, rest, ~0ull);
        n++;
    }
    return rest == state ? NONE : union_of(e, records, n);
}

/* The dearest of the completions after each allowed token, in bytes, or a little more. */
u32 worst_cost(Engine *e, u32 state) {
    u32 outer = e->worst, weigh = e->weigh;
    if (!e->states.p[state].worst) {
        e->weigh = 1;
        e->worst = 0;
        e->states.p[state].record = 0;
        mask_record(e, state);
        e->states.p[state].worst = e->worst + 1;
        e->weigh = weigh;
        e->worst = outer;
    }
    return e->states.p[state].worst - 1;
}

/* A state that most bytes leave for a loop, or that can stay in one. */
static u32 open_record(Engine *e, u32 state) {
    Slice *slice = endless_loop(e, state, ALL_CHARACTERS, 1);
    if (!slice) slice = endless_loop(e, state, WIDE_LOOP, 1);
    if (slice) return outside_record(e, slice, state);
    u32 loop = common_loop(e, state);
    return loop == DEAD ? NONE : difference_from(e, state, loop, DIFFERENCE_WALK);
}

/* Whether a state may be in a loop for which the vocabulary was not read yet. */
static int has_new_loop(const Engine *e, u32 state) {
    u32 kernel = e->states.p[state].kernel;
    for (u32 i = 0; i < tail_count(e, kernel); i++) {
        u32 stack = tail_at(e, kernel, i);
        Node head = e->nodes.p[stack > LOOP_END ? e->stacks.p[stack].head : EMPTY];
        if (head.kind == K_REP && !e->nodes.p[head.a].slice) return 1;
    }
    return 0;
}

/* Read the vocabulary for the loops that are to be: those of characters of any kind, which lengths count
   and patterns go through. Others seldom meet. */
void slice_loops(Engine *e) {
    while (e->loops.n) {
        u32 item = e->loops.p[--e->loops.n];
        if (e->nodes.p[item].slice || e->nodes.p[item].flags & (F_NULLABLE | F_RULES)) continue;
        Mask first = first_bytes(e, state_of(e, push(e, item, LOOP_END)));
        if (mask_size(&first) >= ALL_CHARACTERS) slice_of(e, item);
    }
}

u32 mask_record(Engine *e, u32 state) {
    u32 worst = e->states.p[state].worst;
    if (e->weigh && worst && worst - 1 > e->worst) e->worst = worst - 1;
    if (e->states.p[state].record && (!e->weigh || worst))
        return e->states.p[state].record - 1;
    if (!(e->states.p[state].flags & S_CLOSED)) close_state(e, state);
    if (e->asked.n == MAX_ASKED) fail(e, TOO_DEEP);
    PUSH(e, e->asked, state);
    State s = e->states.p[state];
    u32 record = NONE;
    if (!(s.kernel & IS_SET)) record = stack_record(e, s.kernel, state);
    if (record == NONE && has_new_loop(e, state) && is_open(e, state)) record = closure_record(e, state);
    if (record == NONE) record = parts_record(e, state);
    if (record == NONE && is_open(e, state)) {
        int is_new = !endless_loop(e, state, ALL_CHARACTERS, 0);
        if (is_new) record = closure_record(e, state);
        if (is_new && record == NONE) record = head_record(e, state, 1);
        if (record == NONE) record = open_record(e, state);
    }
    if (record == NONE) record = walk_record(e, state, ~0ull);
    e->asked.n--;
    e->states.p[state].record = record + 1;
    return record;
}
