/* Stacks, states and transitions.

   The head of a stack runs, the rest waits. A state is closed when it is first left: heads are
   expanded until each begins with a set of bytes (an item), and the bytes fall into classes of
   equal items. A transition is computed per class when first taken. */
#include "engine.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_CONFIGURATIONS = 20000, MAX_MERGE_DEPTH = 10000 };

static u32 make_stack(Engine *e, u32 head, u32 tail) {
    u32 hash = mix(mix(head, 0x6C8E95u), tail);
    PROBE(e->stack_table, hash, i) {
        Slot s = *slot_at(&e->stack_table, hash, i);
        if (s.hash == hash && e->stacks.p[s.id - 1].head == head && e->stacks.p[s.id - 1].tail == tail)
            return s.id - 1;
    }
    u32 id = e->stacks.n;
    PUSH(e, e->stacks, ((Stack){head, tail, NONE, 0, 0}));
    table_add(e, &e->stack_table, hash, id);
    return id;
}

/* The stack of `node` before `tail`; of a concatenation only the head is taken apart. */
u32 push(Engine *e, u32 node, u32 tail) {
    if (node == EPS) return tail;
    Node n = e->nodes.p[node];
    return n.kind == K_CAT ? make_stack(e, n.a, make_stack(e, n.b, tail)) : make_stack(e, node, tail);
}

/* ---- sets of stacks -------------------------------------------------------------------------- */

u32 tail_count(const Engine *e, u32 tail) { return tail & IS_SET ? e->sets.p[tail & ~IS_SET].count : 1; }

u32 tail_at(const Engine *e, u32 tail, u32 index) {
    return tail & IS_SET ? e->lists.p[e->sets.p[tail & ~IS_SET].first + index] : tail;
}

static u32 keep_list(Engine *e, const u32 *ids, u32 n) {
    u32 first = e->lists.n;
    RESERVE(e, e->lists, n);
    memcpy(e->lists.p + first, ids, n * sizeof *ids);
    e->lists.n += n;
    return first;
}

static u32 hash_ids(const u32 *ids, u32 n) {
    u32 hash = n;
    for (u32 i = 0; i < n; i++) hash = mix(hash, ids[i]);
    return hash;
}

static u32 make_set_of(Engine *e, const u32 *stacks, u32 n) {
    if (n == 1) return stacks[0];
    u32 hash = hash_ids(stacks, n);
    PROBE(e->set_table, hash, i) {
        Slot s = *slot_at(&e->set_table, hash, i);
        StackSet t = e->sets.p[s.id - 1];
        if (s.hash == hash && t.count == n && !memcmp(e->lists.p + t.first, stacks, n * sizeof *stacks))
            return (s.id - 1) | IS_SET;
    }
    u32 id = e->sets.n;
    PUSH(e, e->sets, ((StackSet){keep_list(e, stacks, n), n, NONE}));
    table_add(e, &e->set_table, hash, id);
    return id | IS_SET;
}

/* Repeats of one item before one tail as few stacks: see join_counts. */
static u32 join_stacks(Engine *e, u32 *stacks, u32 n) {
    u32 num = 0, kept = 0;
    for (u32 i = 0; i < n; i++) num += e->nodes.p[e->stacks.p[stacks[i]].head].kind == K_REP;
    if (num < 2) return n;
    Counts *counts = borrow(e, num * sizeof *counts);
    num = 0;
    for (u32 i = 0; i < n; i++) {
        Stack s = e->stacks.p[stacks[i]];
        Node head = e->nodes.p[s.head];
        if (head.kind == K_REP) counts[num++] = (Counts){head.a, s.tail, head.b, head.c};
        else stacks[kept++] = stacks[i];
    }
    num = join_counts(counts, num);
    for (u32 i = 0; i < num; i++) {
        u32 head = make_repeat(e, counts[i].a, counts[i].low, counts[i].high);
        stacks[kept++] = make_stack(e, head, counts[i].b);
    }
    give_back(e, counts);
    return kept;
}

/* The stacks i to j - 1 have one head; all their tails become one. */
static u32 merge_tails(Engine *e, const u32 *stacks, u32 n) {
    u32 total = 0, k = 0, head = e->stacks.p[stacks[0]].head;
    for (u32 i = 0; i < n; i++) total += tail_count(e, e->stacks.p[stacks[i]].tail);
    u32 *tails = borrow(e, total * sizeof *tails);
    for (u32 i = 0; i < n; i++) {
        u32 tail = e->stacks.p[stacks[i]].tail;
        for (u32 c = 0; c < tail_count(e, tail); c++) tails[k++] = tail_at(e, tail, c);
    }
    spend(e, total);
    u32 tail = merge_stacks(e, tails, total);
    give_back(e, tails);
    return make_stack(e, head, tail);
}

static int compare_heads(const void *x, const void *y) {
    u64 a = *(const u64 *)x, b = *(const u64 *)y;
    return a < b ? -1 : a > b;
}

static u32 merge_now(Engine *e, u32 *stacks, u32 n) {
    n = join_stacks(e, stacks, n);
    u64 few[16], *keys = n <= 16 ? few : borrow(e, n * sizeof *keys);
    for (u32 i = 0; i < n; i++) { /* the end has no head: it stays alone */
        u32 head = stacks[i] <= LOOP_END ? NONE - stacks[i] : e->stacks.p[stacks[i]].head;
        keys[i] = (u64)head << 32 | stacks[i];
    }
    if (keys != few) qsort(keys, n, sizeof *keys, compare_heads);
    for (u32 i = 1; i < n && keys == few; i++) {
        u64 key = keys[i];
        u32 k = i;
        for (; k && keys[k - 1] > key; k--) keys[k] = keys[k - 1];
        keys[k] = key;
    }
    for (u32 i = 0; i < n; i++) stacks[i] = (u32)keys[i];
    u32 kept = 0;
    for (u32 i = 0, j; i < n; i = j) {
        for (j = i + 1; j < n && keys[j] >> 32 == keys[i] >> 32; j++) continue;
        stacks[kept++] = j == i + 1 ? stacks[i] : merge_tails(e, stacks + i, j - i);
    }
    if (keys != few) give_back(e, keys);
    return make_set_of(e, stacks, sort_unique(stacks, kept));
}

/* The stacks as a tail: no two members with the same head, counts joined; kept by what was given. */
u32 merge_stacks(Engine *e, u32 *stacks, u32 n) {
    n = sort_unique(stacks, n);
    if (n == 1) return stacks[0];
    u32 hash = hash_ids(stacks, n);
    PROBE(e->merge_table, hash, i) {
        Slot s = *slot_at(&e->merge_table, hash, i);
        Merge m = e->merges.p[s.id - 1];
        if (s.hash == hash && m.count == n && !memcmp(e->lists.p + m.first, stacks, n * sizeof *stacks))
            return m.whole;
    }
    if (++e->depth > MAX_MERGE_DEPTH) fail(e, TOO_DEEP);
    u32 first = keep_list(e, stacks, n), whole = merge_now(e, stacks, n), id = e->merges.n;
    e->depth--;
    PUSH(e, e->merges, ((Merge){first, n, whole}));
    table_add(e, &e->merge_table, hash, id);
    return whole;
}

/* The state of a tail. */
u32 state_of(Engine *e, u32 tail) {
    u32 *known = tail & IS_SET ? &e->sets.p[tail & ~IS_SET].state : &e->stacks.p[tail].state;
    if (*known != NONE) return *known;
    State s = {.kernel = tail};
    PUSH(e, e->states, s);
    return *known = e->states.n - 1;
}

/* ---- closing a state ------------------------------------------------------------------------ */

static void visit(Engine *e, u32 tail) {
    if (tail & IS_SET) {
        for (u32 i = 0; i < tail_count(e, tail); i++) visit(e, tail_at(e, tail, i));
        return;
    }
    u32 stack = tail;
    Stack *s = &e->stacks.p[stack];
    if (s->seen == e->epoch) return;
    s->seen = e->epoch;
    PUSH(e, e->waiting, stack);
    if (++e->visited > MAX_CONFIGURATIONS) fail(e, TOO_AMBIGUOUS);
    spend(e, 1);
}

/* The first 256 masks are the single bytes, so a byte is its own mask. */
static void add_item(Engine *e, u32 mask, u32 after, u32 opaque) {
    PUSH(e, e->found, ((Item){mask, after, opaque}));
    if (e->found.n > MAX_CONFIGURATIONS) fail(e, TOO_AMBIGUOUS);
    spend(e, 1);
}

/* A rule's body. Entered twice in one closure, it is checked once for left recursion: NONE says
   that bodies were rewritten and the closure has to begin again. */
u32 rule_body(Engine *e, u32 rule, int may_check) {
    Rule *r = &e->rules.p[rule];
    int check = may_check && r->entered == e->epoch && !r->checked;
    if (may_check) r->entered = e->epoch;
    if (r->body != NONE && !check) return r->body;
    if (r->chain) {
        u32 body = chain_body(e, rule);
        return e->rules.p[rule].body = body;
    }
    if (check) r->checked = 1;
    i32 answer = e->expand(rule, check); /* may add anything */
    if (answer < 0) fail(e, CALLBACK);
    if (check) return answer ? NONE : e->rules.p[rule].body;
    return e->rules.p[rule].body = (u32)answer;
}

static int expand(Engine *e, u32 node, u32 tail);

static int expand_repeat(Engine *e, Node n, u32 tail) {
    u32 rest = make_repeat(e, n.a, n.b ? n.b - 1 : 0, n.c == NONE ? NONE : n.c - 1);
    u32 after = push(e, rest, tail);
    if (n.b == 0) {
        visit(e, tail);
        if (after != tail) e->stacks.p[after].seen = e->epoch; /* an empty item adds nothing */
    }
    return expand(e, n.a, after);
}

static void expand_opaque(Engine *e, u32 node, u32 tail) {
    if (e->nodes.p[node].flags & F_NULLABLE) visit(e, tail);
    u32 list = classes_of(e, node), n = e->lists.p[list];
    for (u32 i = 1; i <= n; i++) add_item(e, e->lists.p[list + i], tail, node);
}

static void expand_words(Engine *e, u32 node, u32 tail) {
    if (e->nodes.p[node].flags & F_NULLABLE) visit(e, tail);
    u32 from = 0, byte, after;
    while ((after = words_split(e, node, &from, &byte)) != NONE)
        add_item(e, byte, push(e, after, tail), NONE);
}

/* Add the ways on of `node` before `tail`. 0: begin again. */
static int expand(Engine *e, u32 node, u32 tail) {
    Node n = e->nodes.p[node];
    switch (n.kind) {
    case K_EMPTY: return 1;
    case K_EPS: visit(e, tail); return 1;
    case K_SET: add_item(e, n.a, tail, NONE); return 1;
    case K_LIT:
        add_item(e, e->pool.p[n.a], push(e, literal_tail(e, node, 1), tail), NONE);
        return 1;
    case K_CAT: visit(e, push(e, node, tail)); return 1;
    case K_ALT:
        for (u32 i = 0; i < n.b; i++) {
            u32 part = e->lists.p[n.a + i];
            u8 kind = e->nodes.p[part].kind;
            if (kind == K_SET || kind == K_LIT || kind == K_EPS) expand(e, part, tail);
            else visit(e, push(e, part, tail));
        }
        return 1;
    case K_REP: visit(e, push(e, node, tail)); return 1;
    case K_AND:
    case K_NOT: expand_opaque(e, node, tail); return 1;
    case K_WORDS: expand_words(e, node, tail); return 1;
    case K_RULE: {
        u32 body = rule_body(e, n.a, 1);
        if (body == NONE) return 0;
        visit(e, push(e, body, tail));
        return 1;
    }
    }
    return 1;
}

static int expand_head(Engine *e, Stack s) {
    Node n = e->nodes.p[s.head];
    return n.kind == K_REP ? expand_repeat(e, n, s.tail) : expand(e, s.head, s.tail);
}

static int gather(Engine *e, u32 state, u8 *flags) {
    e->waiting.n = e->found.n = e->visited = 0;
    *flags &= (u8)~(S_ACCEPTING | S_ENDS);
    e->epoch++;
    visit(e, e->states.p[state].kernel);
    while (e->waiting.n) {
        u32 stack = e->waiting.p[--e->waiting.n];
        if (stack == END) *flags |= S_ACCEPTING;
        else if (stack == LOOP_END) *flags |= S_ENDS;
        else if (!expand_head(e, e->stacks.p[stack])) return 0;
    }
    return 1;
}

/* The map from byte to class for a sequence of masks, shared by all states that have it. */
static u32 class_map(Engine *e, const Item *items, u32 n) {
    u32 hash = n;
    for (u32 i = 0; i < n; i++) hash = mix(hash, items[i].mask);
    PROBE(e->map_table, hash, i) {
        Slot s = *slot_at(&e->map_table, hash, i);
        const u32 *key = e->map_masks.p + 3 * (s.id - 1);
        if (s.hash != hash || key[1] != n) continue;
        u32 j = 0;
        while (j < n && e->lists.p[key[0] + j] == items[j].mask) j++;
        if (j == n) return s.id - 1;
    }
    Partition p;
    partition_start(&p);
    u32 list = e->lists.n;
    for (u32 i = 0; i < n; i++) {
        partition_split(&p, &e->masks.p[items[i].mask]);
        PUSH(e, e->lists, items[i].mask);
    }
    u32 id = e->maps.n / 256;
    RESERVE(e, e->maps, 256);
    for (u32 class = 0; class < p.n; class++)
        for (u32 w = 0; w < 4; w++)
            for (u64 bits = p.of[class].w[w]; bits; bits &= bits - 1)
                e->maps.p[e->maps.n + w * 64 + (u32)__builtin_ctzll(bits)] = (u8)class;
    e->maps.n += 256;
    PUSH(e, e->map_masks, list);
    PUSH(e, e->map_masks, n);
    PUSH(e, e->map_masks, p.n);
    table_add(e, &e->map_table, hash, id);
    return id;
}

void close_state(Engine *e, u32 state) {
    u8 flags = e->states.p[state].flags;
    while (!gather(e, state, &flags)) continue;
    u32 n = e->found.n, map = class_map(e, e->found.p, n), classes = e->map_masks.p[3 * map + 2];
    u32 items = e->items.n, next = e->nexts.n;
    RESERVE(e, e->items, n);
    if (n) memcpy(e->items.p + items, e->found.p, n * sizeof(Item));
    RESERVE(e, e->nexts, classes);
    memset(e->nexts.p + next, 0xFF, classes * sizeof(u32));
    e->items.n += n;
    e->nexts.n += classes;
    State *s = &e->states.p[state];
    s->items = items;
    s->num_items = n;
    s->map = map;
    s->next = next;
    s->num_classes = (u16)classes;
    s->flags = flags | S_CLOSED;
}

/* Add the stacks of a tail to `after`; a concatenation that waited is taken apart now. */
static void add_after(Engine *e, u32 tail) {
    for (u32 c = 0; c < tail_count(e, tail); c++) {
        u32 stack = tail_at(e, tail, c);
        Stack top = e->stacks.p[stack];
        if (e->nodes.p[top.head].kind == K_CAT) stack = push(e, top.head, top.tail);
        PUSH(e, e->after, stack);
    }
}

/* The state behind the literal that a state begins with. */
u32 behind_literal(Engine *e, u32 state) {
    e->after.n = 0;
    add_after(e, e->stacks.p[e->states.p[state].kernel].tail);
    return state_of(e, merge_stacks(e, e->after.p, e->after.n));
}

/* The state within it, behind some of its bytes and before others. */
u32 within_literal(Engine *e, u32 state, u32 passed) {
    Stack top = e->stacks.p[e->states.p[state].kernel];
    return state_of(e, push(e, literal_tail(e, top.head, passed), top.tail));
}

u32 compute_next(Engine *e, u32 state, u32 byte) {
    State s = e->states.p[state];
    e->after.n = 0;
    spend(e, s.num_items);
    for (u32 i = 0; i < s.num_items; i++) {
        Item item = e->items.p[s.items + i];
        if (!has(&e->masks.p[item.mask], byte)) continue;
        u32 after = item.after;
        if (item.opaque != NONE) {
            u32 left = derive(e, item.opaque, byte);
            if (liveness(e, left, patient(e, MAX_EMPTINESS_STATES)) <= 0) continue;
            after = push(e, left, item.after);
        }
        add_after(e, after);
    }
    u32 next = e->after.n ? state_of(e, merge_stacks(e, e->after.p, e->after.n)) : DEAD;
    e->nexts.p[s.next + e->maps.p[(size_t)s.map * 256 + byte]] = next;
    return next;
}
