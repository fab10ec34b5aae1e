/* Derivatives of regular expressions, their byte classes, and whether anything is left of them.

   Source: J. Brzozowski, JACM 11(4), 1964; S. Owens, J. Reppy, A. Turon, JFP 2009. */
#include "engine.h"
#include <stdlib.h>
#include <string.h>

enum { IMPATIENT = 200, MAX_DEPTH = 10000, MAX_BOUND = 60000, MAX_KEPT = 64, ALL_TRIED = 257 };

/* ---- derivatives --------------------------------------------------------------------------- */

static u32 derive_words(Engine *e, u32 node, u32 byte) {
    Node n = e->nodes.p[node];
    const Span *s = e->words.p + e->tables.p[n.a].first;
    u32 low = n.b + (s[n.b].length == n.d), high = n.c; /* first word with a byte >= `byte` */
    while (low < high) {
        u32 middle = low + (high - low) / 2;
        if (e->pool.p[s[middle].offset + n.d] < byte) low = middle + 1;
        else high = middle;
    }
    u32 end = low, limit = n.c;
    while (end < limit) {
        u32 middle = end + (limit - end) / 2;
        if (e->pool.p[s[middle].offset + n.d] <= byte) end = middle + 1;
        else limit = middle;
    }
    return low < end ? make_words(e, n.a, low, end, n.d + 1) : EMPTY;
}

static u32 derive_parts(Engine *e, Node n, u32 byte) {
    u32 few[16], *parts = n.b <= 16 ? few : borrow(e, n.b * sizeof *parts), kept = 0, result = EMPTY;
    int is_alt = n.kind == K_ALT, is_over = 0; /* nothing is left of an intersection */
    for (u32 i = 0; i < n.b && !is_over; i++) {
        u32 part = derive(e, e->lists.p[n.a + i], byte);
        is_over = !is_alt && part == EMPTY;
        if (part != EMPTY) parts[kept++] = part;
    }
    spend(e, n.b);
    if (!is_over && kept) result = kept == 1 ? parts[0] : is_alt ? make_alt(e, parts, kept) : make_and(e, parts, kept);
    if (parts != few) give_back(e, parts);
    return result;
}

static u32 derive_now(Engine *e, u32 node, u32 byte) {
    Node n = e->nodes.p[node];
    switch (n.kind) {
    case K_CAT: {
        u32 first = make_cat(e, derive(e, n.a, byte), n.b);
        if (!(e->nodes.p[n.a].flags & F_NULLABLE)) return first;
        u32 parts[2] = {first, derive(e, n.b, byte)};
        return make_alt(e, parts, 2);
    }
    case K_REP: {
        u32 rest = make_repeat(e, n.a, n.b ? n.b - 1 : 0, n.c == NONE ? NONE : n.c - 1);
        return make_cat(e, derive(e, n.a, byte), rest);
    }
    case K_NOT: return make_not(e, derive(e, n.a, byte));
    case K_WORDS: return derive_words(e, node, byte);
    default: return derive_parts(e, n, byte);
    }
}

/* The lowest byte of the same class, where the classes of a node are known: what it is derived by. */
static u32 alike(const Engine *e, Node n, u32 byte) {
    if (!n.part) return byte;
    const u32 *list = e->lists.p + n.part - 1;
    for (u32 i = 1; i <= list[0]; i++)
        if (has(&e->masks.p[list[i]], byte)) return lowest(&e->masks.p[list[i]]);
    return byte;
}

static int begins_otherwise(const Engine *e, Node n, u32 byte) {
    return n.kind == K_SET ? !has(&e->masks.p[n.a], byte) : n.kind == K_LIT && e->pool.p[n.a] != byte;
}

/* The derivatives of a node lie together, so that a search which makes them touches little memory: how many
   of how many there is room for, the nodes, and the bytes that they are by. */
enum { FEW_DERIVED = 4 };

static u32 find_derived(const Engine *e, u32 derived, u32 byte) {
    if (!derived) return NONE;
    const u32 *p = e->derived.p + derived - 1;
    const u8 *bytes = (const u8 *)(p + 2 + p[1]), *at = memchr(bytes, (int)byte, p[0]);
    return at ? p[2 + (at - bytes)] : NONE;
}

static void keep_derived(Engine *e, u32 node, u32 byte, u32 result) {
    u32 known = e->nodes.p[node].derived, n = known ? e->derived.p[known - 1] : 0;
    if (!known || n == e->derived.p[known]) {
        u32 room = n ? 2 * n : FEW_DERIVED, words = 2 + room + room / 4;
        RESERVE(e, e->derived, words);
        u32 *p = e->derived.p + e->derived.n;
        if (known) { /* full: as many bytes as nodes */
            const u32 *before = e->derived.p + known + 1;
            memcpy(p + 2, before, n * sizeof *p);
            memcpy(p + 2 + room, before + n, n);
        }
        p[1] = room;
        e->nodes.p[node].derived = known = e->derived.n + 1;
        e->derived.n += words;
    }
    u32 *p = e->derived.p + known - 1;
    p[2 + n] = result;
    ((u8 *)(p + 2 + p[1]))[n] = (u8)byte;
    p[0] = n + 1;
}

u32 derive(Engine *e, u32 node, u32 byte) {
    Node n = e->nodes.p[node];
    switch (n.kind) {
    case K_EMPTY:
    case K_EPS: return EMPTY;
    case K_SET: return has(&e->masks.p[n.a], byte) ? EPS : EMPTY;
    case K_LIT: return e->pool.p[n.a] == byte ? literal_tail(e, node, 1) : EMPTY;
    case K_CAT: /* most parts of an alternative begin otherwise: nothing is looked up for these */
    case K_REP:
        if (begins_otherwise(e, e->nodes.p[n.a], byte)) return EMPTY;
        break;
    case K_RULE: fail(e, UNDECIDED); /* rules are not regular; the front end checks */
    }
    byte = alike(e, n, byte);
    u32 result = find_derived(e, n.derived, byte);
    if (result != NONE) return result;
    if (++e->depth > MAX_DEPTH) fail(e, TOO_DEEP);
    spend(e, 4);
    result = derive_now(e, node, byte);
    e->depth--;
    e->nodes.p[result].flags |= n.flags & F_FAR;
    keep_derived(e, node, byte, result);
    return result;
}

/* ---- classes of bytes with the same derivative --------------------------------------------- */

void partition_start(Partition *p) {
    memset(&p->of[0], 0xFF, sizeof p->of[0]);
    p->n = 1;
}

void partition_split(Partition *p, const Mask *m) {
    for (u32 class = 0, old = p->n; class < old; class++) {
        Mask both, *of = &p->of[class];
        u64 inside = 0, outside = 0;
        for (u32 w = 0; w < 4; w++) {
            inside |= both.w[w] = of->w[w] & m->w[w];
            outside |= of->w[w] & ~m->w[w];
        }
        if (!inside || !outside) continue;
        for (u32 w = 0; w < 4; w++) of->w[w] &= ~both.w[w];
        p->of[p->n++] = both;
    }
}

static void split_byte(Partition *p, u32 byte) {
    u32 class = 0;
    while (!has(&p->of[class], byte)) class++;
    if (mask_size(&p->of[class]) == 1) return;
    Mask *fresh = &p->of[p->n++];
    *fresh = (Mask){{0}};
    fresh->w[byte >> 6] = 1ull << (byte & 63);
    p->of[class].w[byte >> 6] &= ~fresh->w[byte >> 6];
}

static void partition(Engine *e, u32 node, Partition *p);
static void partition_by(Engine *e, u32 node, Partition *p);

static void partition_node(Engine *e, u32 node, Partition *p) {
    Node n = e->nodes.p[node];
    switch (n.kind) {
    case K_SET: partition_split(p, &e->masks.p[n.a]); return;
    case K_LIT: split_byte(p, e->pool.p[n.a]); return;
    case K_NOT: partition_by(e, n.a, p); return;
    case K_REP: partition(e, n.a, p); return;
    case K_CAT:
        partition(e, n.a, p);
        if (e->nodes.p[n.a].flags & F_NULLABLE) partition(e, n.b, p);
        return;
    case K_AND:
        for (u32 i = 0; i < n.b; i++) partition_by(e, e->lists.p[n.a + i], p);
        return;
    case K_ALT:
        for (u32 i = 0; i < n.b; i++) partition(e, e->lists.p[n.a + i], p);
        return;
    case K_WORDS: {
        u32 from = 0, byte;
        while (words_split(e, node, &from, &byte) != NONE) split_byte(p, byte);
    }
    }
}

static void partition(Engine *e, u32 node, Partition *p) {
    if (e->nodes.p[node].kind == K_REP) {
        partition_by(e, node, p);
        return;
    }
    if (++e->depth > MAX_DEPTH) fail(e, TOO_DEEP);
    partition_node(e, node, p);
    e->depth--;
}

/* By the classes of a node, which are kept: repeats and parts of intersections come back in derivatives.
   Not far down, as partitions take much of the stack. */
static void partition_by(Engine *e, u32 node, Partition *p) {
    if (++e->depth > MAX_DEPTH) fail(e, TOO_DEEP);
    if (e->depth > MAX_KEPT && e->nodes.p[node].kind != K_REP) {
        partition_node(e, node, p);
        e->depth--;
        return;
    }
    u32 list = classes_of(e, node), n = e->lists.p[list];
    e->depth--;
    for (u32 i = 1; i <= n; i++) {
        const Mask *m = &e->masks.p[e->lists.p[list + i]];
        if (mask_size(m) == 1) split_byte(p, lowest(m));
        else partition_split(p, m);
    }
}

/* Where in `lists` the byte classes of a node are: their number, then their masks. They are
   disjoint, and each byte is in one of them, also where its derivative is EMPTY. */
u32 classes_of(Engine *e, u32 node) {
    if (e->nodes.p[node].part) return e->nodes.p[node].part - 1;
    Partition p;
    partition_start(&p);
    partition_node(e, node, &p);
    u32 list = e->lists.n;
    PUSH(e, e->lists, p.n);
    for (u32 i = 0; i < p.n; i++) PUSH(e, e->lists, make_mask(e, &p.of[i]));
    e->nodes.p[node].part = list + 1;
    return list;
}

/* ---- emptiness ------------------------------------------------------------------------------ */

/* 1: some string is left, 0: none, -1: not known yet. */
static int settled(const Engine *e, u32 node) {
    u8 flags = e->nodes.p[node].flags;
    if (node == EMPTY || flags & F_DEAD) return 0;
    return flags & (F_NULLABLE | F_ALIVE) || !(flags & F_BOOL) ? 1 : -1;
}

static void set_bound(Engine *e, u32 node, u64 bound) {
    e->nodes.p[node].bound = (u16)((bound < MAX_BOUND ? bound : MAX_BOUND) + 1);
}

/* Of a concatenation, and of what follows each of its parts: without a recursion, as it may be long. */
static u64 sum_bounds(Engine *e, u32 node) {
    u64 sum = 0, passed = 0;
    u32 rest = node;
    for (; e->nodes.p[rest].kind == K_CAT && !e->nodes.p[rest].bound; rest = e->nodes.p[rest].b)
        sum += at_least(e, e->nodes.p[rest].a);
    sum += at_least(e, rest);
    for (u32 at = node; at != rest; at = e->nodes.p[at].b) {
        set_bound(e, at, sum - passed);
        passed += at_least(e, e->nodes.p[at].a);
    }
    return sum;
}

/* A bound from below of the bytes of a node's shortest string, by its form alone: one byte more of a
   text lowers it by one at most. */
u32 at_least(Engine *e, u32 node) {
    Node n = e->nodes.p[node];
    if (n.bound) return n.bound - 1u;
    if (++e->depth > MAX_DEPTH) fail(e, TOO_DEEP);
    u64 bound = n.kind == K_ALT ? MAX_BOUND : 0;
    switch (n.kind) {
    case K_EMPTY: bound = MAX_BOUND; break;
    case K_LIT: bound = n.b; break;
    case K_SET:
    case K_WORDS:
    case K_NOT: bound = !(n.flags & F_NULLABLE); break;
    case K_REP: bound = (u64)n.b * at_least(e, n.a); break;
    case K_CAT: bound = sum_bounds(e, node); break;
    case K_ALT:
    case K_AND:
        for (u32 i = 0; i < n.b; i++) {
            u32 part = at_least(e, e->lists.p[n.a + i]);
            if (n.kind == K_ALT ? part < bound : part > bound) bound = part;
        }
    }
    e->depth--;
    set_bound(e, node, bound);
    return e->nodes.p[node].bound - 1u;
}

/* Go on with what is nearest to an end, as far as can be said, among what was added from `first`. */
static void nearest_last(Engine *e, u32 first) {
    Try *p = e->search.p;
    u32 n = e->search.n;
    if (first == n) return;
    u32 best = first;
    for (u32 i = first + 1; i < n; i++)
        if (at_least(e, p[i].node) < at_least(e, p[best].node)) best = i;
    Try nearest = p[best];
    p[best] = p[n - 1];
    p[n - 1] = nearest;
}

/* Add to a search the derivatives of a node that are not settled, from one of its classes on: of one that
   is nearer to an end the others are left for later. Returns the class to go on with, 0 when there are no
   more, NONE when a string is left. */
static u32 add_derivatives(Engine *e, u32 node, u32 class, u32 mark) {
    u32 list = classes_of(e, node), n = e->lists.p[list], bound = at_least(e, node);
    while (class <= n) {
        u32 next = derive(e, node, lowest(&e->masks.p[e->lists.p[list + class++]]));
        int known = settled(e, next);
        if (known == 1) return NONE;
        if (e->nodes.p[next].flags & F_LOST && !e->is_strict) {
            e->passed_lost = 1;
            continue;
        }
        if (known == 0 || e->nodes.p[next].mark == mark) continue;
        e->nodes.p[next].mark = mark;
        PUSH(e, e->search, ((Try){next, 0}));
        if (at_least(e, next) < bound) break;
    }
    return class <= n ? class : 0;
}

/* Depth first for a derivative that denotes the empty string: 1 when there is one, -1 when there
   are too many to say. `search` holds the path, and what is left to try beside it.
   What was seen counts as dead meanwhile, so as not to go there twice; end_search takes that back. */
static int search(Engine *e, u32 start, u32 most) {
    u32 mark = ++e->mark;
    u64 half = e->fuel / 2; /* what is left is for those who come after it */
    e->passed_lost = 0;
    e->search.n = e->seen.n = 0;
    PUSH(e, e->search, ((Try){start, 0}));
    while (e->search.n) {
        Try *here = &e->search.p[e->search.n - 1];
        if (here->class == ALL_TRIED) {
            e->search.n--;
            continue;
        }
        if (!here->class) {
            if (e->seen.n >= most || e->fuel < half) return -1;
            PUSH(e, e->seen, here->node);
            e->nodes.p[here->node].flags |= F_DEAD;
            here->class = 1;
        }
        u32 first = e->search.n, left = add_derivatives(e, here->node, here->class, mark);
        if (left == NONE) return 1;
        e->search.p[first - 1].class = left ? left : ALL_TRIED;
        nearest_last(e, first);
    }
    return e->passed_lost ? -1 : 0;
}

/* Only a search that ran to its end has proven that all it saw is dead. */
void end_search(Engine *e, int found) {
    if (found == 0) e->seen.n = 0;
    while (e->seen.n) e->nodes.p[e->seen.p[--e->seen.n]].flags &= (u8)~F_DEAD;
    for (u32 i = 0; found == 1 && i < e->search.n; i++)
        if (e->search.p[i].class) e->nodes.p[e->search.p[i].node].flags |= F_ALIVE;
}

/* How many states a search may see that a text waits for. */
u32 patient(const Engine *e, u32 most) {
    u32 left = e->patience > IMPATIENT ? e->patience : IMPATIENT;
    return left < most ? left : most;
}

void lose_patience(Engine *e, u32 states) { e->patience -= states < e->patience ? states : e->patience; }

/* 1 where some string is left, 0 where none is, -1 where neither is found in about as many states as may
   be looked at. A text does not go on where that is not known, as it might have to fail there. */
int liveness(Engine *e, u32 node, u32 most) {
    int known = settled(e, node);
    if (known >= 0) return known;
    if (e->nodes.p[node].flags & F_LOST && !e->is_strict) return -1;
    int found = search(e, node, most);
    end_search(e, found);
    if (found >= 0) return found;
    lose_patience(e, most);
    if (some_length(e, node, most) < NEVER) return 1;
    e->nodes.p[node].flags |= F_LOST;
    return -1;
}

/* The same where it has to be known, as before any text is read, and there is time to look again at what
   a text had no patience for. */
int is_alive(Engine *e, u32 node) {
    e->is_strict = 1;
    int found = liveness(e, node, MAX_EMPTINESS_STATES);
    e->is_strict = 0;
    if (found < 0) fail(e, UNDECIDED);
    return found;
}
