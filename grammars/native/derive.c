/* Derivatives of regular expressions, their byte classes, and whether anything is left of them.

   Source: J. Brzozowski, JACM 11(4), 1964; S. Owens, J. Reppy, A. Turon, JFP 2009. */
#include "engine.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_EMPTINESS_STATES = 20000, MAX_DEPTH = 10000 };

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
    u32 *parts = malloc(n.b * sizeof *parts);
    if (!parts) fail(e, OUT_OF_MEMORY);
    for (u32 i = 0; i < n.b; i++) parts[i] = derive(e, e->lists.p[n.a + i], byte);
    spend(e, n.b);
    u32 result = n.kind == K_ALT ? make_alt(e, parts, n.b) : make_and(e, parts, n.b);
    free(parts);
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

u32 derive(Engine *e, u32 node, u32 byte) {
    Node n = e->nodes.p[node];
    switch (n.kind) {
    case K_EMPTY:
    case K_EPS: return EMPTY;
    case K_SET: return has(&e->masks.p[n.a], byte) ? EPS : EMPTY;
    case K_LIT: return e->pool.p[n.a] == byte ? literal_tail(e, node) : EMPTY;
    case K_RULE: fail(e, UNDECIDED); /* rules are not regular; the front end checks */
    }
    u32 hash = mix(mix(node, 0x2545F4u), byte);
    u64 key = (u64)node << 8 | byte;
    PROBE(e->derivative_table, hash, i) {
        Slot s = *slot_at(&e->derivative_table, hash, i);
        if (s.hash == hash && e->derivatives.p[2 * (s.id - 1)] == key)
            return (u32)e->derivatives.p[2 * (s.id - 1) + 1];
    }
    if (++e->depth > MAX_DEPTH) fail(e, TOO_DEEP);
    spend(e, 4);
    u32 result = derive_now(e, node, byte);
    e->depth--;
    u32 id = e->derivatives.n / 2;
    PUSH(e, e->derivatives, key);
    PUSH(e, e->derivatives, result);
    table_add(e, &e->derivative_table, hash, id);
    return result;
}

/* ---- classes of bytes with the same derivative --------------------------------------------- */

void partition_start(Partition *p) {
    memset(p->of, 0, sizeof p->of);
    p->size[0] = 256;
    p->n = 1;
}

void partition_split(Partition *p, const Mask *m) {
    u16 inside[256] = {0}, fresh[256];
    for (u32 w = 0; w < 4; w++)
        for (u64 bits = m->w[w]; bits; bits &= bits - 1)
            inside[p->of[w * 64 + (u32)__builtin_ctzll(bits)]]++;
    memset(fresh, 0xFF, sizeof fresh);
    u32 old = p->n;
    for (u32 w = 0; w < 4; w++)
        for (u64 bits = m->w[w]; bits; bits &= bits - 1) {
            u32 byte = w * 64 + (u32)__builtin_ctzll(bits), class = p->of[byte];
            if (class >= old || inside[class] == p->size[class]) continue; /* whole: no split */
            if (fresh[class] == 0xFFFF) {
                fresh[class] = (u16)p->n;
                p->size[p->n++] = inside[class];
            }
            p->of[byte] = (u8)fresh[class];
        }
    for (u32 class = 0; class < old; class++)
        if (fresh[class] != 0xFFFF) p->size[class] -= inside[class];
}

static void split_byte(Partition *p, u32 byte) {
    u32 class = p->of[byte];
    if (p->size[class] == 1) return;
    p->size[class]--;
    p->of[byte] = (u8)p->n;
    p->size[p->n++] = 1;
}

static void partition(Engine *e, u32 node, Partition *p);

static void partition_node(Engine *e, u32 node, Partition *p) {
    Node n = e->nodes.p[node];
    switch (n.kind) {
    case K_SET: partition_split(p, &e->masks.p[n.a]); return;
    case K_LIT: split_byte(p, e->pool.p[n.a]); return;
    case K_NOT:
    case K_REP: partition(e, n.a, p); return;
    case K_CAT:
        partition(e, n.a, p);
        if (e->nodes.p[n.a].flags & F_NULLABLE) partition(e, n.b, p);
        return;
    case K_ALT:
    case K_AND:
        for (u32 i = 0; i < n.b; i++) partition(e, e->lists.p[n.a + i], p);
        return;
    case K_WORDS: {
        u32 from = 0, byte;
        while (words_split(e, node, &from, &byte) != NONE) split_byte(p, byte);
    }
    }
}

/* Repeats keep their classes: they come back in every derivative. */
static void partition(Engine *e, u32 node, Partition *p) {
    if (e->nodes.p[node].kind != K_REP) {
        if (++e->depth > MAX_DEPTH) fail(e, TOO_DEEP);
        partition_node(e, node, p);
        e->depth--;
        return;
    }
    u32 list = classes_of(e, node), n = e->lists.p[list];
    for (u32 i = 1; i <= n; i++) {
        const Mask *m = &e->masks.p[e->lists.p[list + i]];
        if (mask_size(m) == 1) split_byte(p, lowest(m));
        else partition_split(p, m);
    }
}

/* Where in `lists` the byte classes of a node are: their number, then their masks. They are
   disjoint; a class whose derivative is EMPTY at first sight is left out. */
u32 classes_of(Engine *e, u32 node) {
    if (e->nodes.p[node].part) return e->nodes.p[node].part - 1;
    Partition p;
    partition_start(&p);
    partition_node(e, node, &p);
    Mask masks[256];
    memset(masks, 0, p.n * sizeof *masks);
    for (u32 byte = 0; byte < 256; byte++) masks[p.of[byte]].w[byte >> 6] |= 1ull << (byte & 63);
    u32 ids[256], n = 0;
    for (u32 i = 0; i < p.n; i++) ids[n++] = make_mask(e, &masks[i]);
    u32 list = e->lists.n;
    PUSH(e, e->lists, n);
    for (u32 i = 0; i < n; i++) PUSH(e, e->lists, ids[i]);
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

/* Depth first for a derivative that denotes the empty string: 1 when there is one, -1 when there
   are too many to say. `search` holds pairs: a node of the path and its next class. What was seen
   counts as dead meanwhile, so as not to go there twice; end_search takes that back. */
static int search(Engine *e, u32 start) {
    e->search.n = e->seen.n = 0;
    PUSH(e, e->seen, start);
    e->nodes.p[start].flags |= F_DEAD;
    PUSH(e, e->search, start);
    PUSH(e, e->search, 0);
    while (e->search.n) {
        u32 *top = e->search.p + e->search.n - 2, list = classes_of(e, top[0]);
        if (top[1] == e->lists.p[list]) {
            e->search.n -= 2;
            continue;
        }
        u32 mask = e->lists.p[list + 1 + top[1]++];
        u32 next = derive(e, top[0], lowest(&e->masks.p[mask]));
        int known = settled(e, next);
        if (known == 1) return 1;
        if (known == 0) continue;
        if (e->seen.n == MAX_EMPTINESS_STATES) return -1;
        PUSH(e, e->seen, next);
        e->nodes.p[next].flags |= F_DEAD;
        PUSH(e, e->search, next);
        PUSH(e, e->search, 0);
    }
    return 0;
}

/* Only a search that ran to its end has proven that all it saw is dead. */
void end_search(Engine *e, int found) {
    if (found == 0) e->seen.n = 0;
    while (e->seen.n) e->nodes.p[e->seen.p[--e->seen.n]].flags &= (u8)~F_DEAD;
    for (u32 i = 0; found == 1 && i < e->search.n; i += 2)
        e->nodes.p[e->search.p[i]].flags |= F_ALIVE;
}

int is_alive(Engine *e, u32 node) {
    int known = settled(e, node);
    if (known >= 0) return known;
    int found = search(e, node);
    end_search(e, found);
    if (found < 0) fail(e, UNDECIDED);
    return found;
}
