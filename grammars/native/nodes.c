/* Expressions: interned, built by constructors that apply the identities of each operator.

   Alternatives and intersections are sorted sets, so that the derivatives of an expression are
   finitely many; repeats of one item before one tail share their counts (join_counts). */
#include "engine.h"
#include <stdlib.h>
#include <string.h>

enum { FEW = 32, LONG = 64 }; /* parts; bytes of a literal */

static u32 hash_bytes(const u8 *p, u32 n) {
    u32 h = n;
    for (; n >= 4; p += 4, n -= 4) {
        u32 x;
        memcpy(&x, p, 4);
        h = mix(h, x);
    }
    while (n--) h = mix(h, *p++);
    return h;
}

static u32 hash_node(const Engine *e, const Node *n, const u32 *list) {
    u32 h = mix(n->kind, 0x51ED27u);
    switch (n->kind) {
    case K_LIT: return mix(h, hash_bytes(e->pool.p + n->a, n->b));
    case K_ALT:
    case K_AND:
        for (u32 i = 0; i < n->b; i++) h = mix(h, list[i]);
        return h;
    default: return mix(mix(mix(mix(h, n->a), n->b), n->c), n->d);
    }
}

static int same_node(const Engine *e, const Node *x, const Node *y, const u32 *list) {
    if (x->kind != y->kind) return 0;
    switch (x->kind) {
    case K_LIT:
        return x->b == y->b && (x->a == y->a || !memcmp(e->pool.p + x->a, e->pool.p + y->a, x->b));
    case K_ALT:
    case K_AND: return x->b == y->b && !memcmp(e->lists.p + x->a, list, x->b * sizeof *list);
    default: return x->a == y->a && x->b == y->b && x->c == y->c && x->d == y->d;
    }
}

static u32 find_node(Engine *e, const Node *n, const u32 *list, u32 hash) {
    PROBE(e->node_table, hash, i) {
        Slot s = *slot_at(&e->node_table, hash, i);
        if (s.hash == hash && same_node(e, &e->nodes.p[s.id - 1], n, list)) return s.id - 1;
    }
    return NONE;
}

static u32 add_node(Engine *e, Node n, u32 hash) {
    u32 id = e->nodes.n;
    PUSH(e, e->nodes, n);
    table_add(e, &e->node_table, hash, id);
    return id;
}

static u32 intern(Engine *e, Node n) {
    u32 hash = hash_node(e, &n, NULL), found = find_node(e, &n, NULL, hash);
    return found != NONE ? found : add_node(e, n, hash);
}

static u32 intern_list(Engine *e, Node n, const u32 *list) {
    u32 hash = hash_node(e, &n, list), found = find_node(e, &n, list, hash);
    if (found != NONE) return found;
    RESERVE(e, e->lists, n.b);
    n.a = e->lists.n;
    memcpy(e->lists.p + n.a, list, n.b * sizeof *list);
    e->lists.n += n.b;
    return add_node(e, n, hash);
}

u32 make_mask(Engine *e, const Mask *m) {
    u32 hash = hash_bytes((const u8 *)m, sizeof *m);
    PROBE(e->mask_table, hash, i) {
        Slot s = *slot_at(&e->mask_table, hash, i);
        if (s.hash == hash && !memcmp(&e->masks.p[s.id - 1], m, sizeof *m)) return s.id - 1;
    }
    u32 id = e->masks.n;
    PUSH(e, e->masks, *m);
    table_add(e, &e->mask_table, hash, id);
    return id;
}

u32 make_set(Engine *e, const Mask *m) {
    if (!mask_size(m)) return EMPTY;
    return intern(e, (Node){.kind = K_SET, .a = make_mask(e, m)});
}

static u32 literal_at(Engine *e, u32 offset, u32 length) {
    return length ? intern(e, (Node){.kind = K_LIT, .a = offset, .b = length}) : EPS;
}

u32 make_literal(Engine *e, const u8 *bytes, u32 length) {
    u32 offset = e->pool.n;
    RESERVE(e, e->pool, length);
    if (length) memcpy(e->pool.p + offset, bytes, length);
    e->pool.n += length;
    u32 node = literal_at(e, offset, length);
    if (length && e->nodes.p[node].a != offset) e->pool.n = offset; /* known: give it back */
    return node;
}

/* What is left of a literal behind some of its bytes. A long one is known by where it lies: to read it all
   for each byte of a text takes long. Its cost is known with that of the whole. */
u32 literal_tail(Engine *e, u32 node, u32 passed) {
    Node n = e->nodes.p[node];
    if (n.b < LONG + passed) return literal_at(e, n.a + passed, n.b - passed);
    Node tail = {.kind = K_LIT, .a = n.a + passed, .b = n.b - passed};
    u32 hash = mix(mix(tail.a, 0x3C6EF3u), tail.b), found = find_node(e, &tail, NULL, hash);
    if (found == NONE) found = add_node(e, tail, hash);
    if (n.cost && n.cost <= NEVER) e->nodes.p[found].cost = n.cost - passed;
    return found;
}

static u8 flags_of(const Engine *e, u32 node) { return e->nodes.p[node].flags; }

u32 make_cat(Engine *e, u32 a, u32 b) {
    if (a == EMPTY || b == EMPTY) return EMPTY;
    if (a == EPS) return b;
    if (b == EPS) return a;
    if (e->nodes.p[a].kind == K_CAT) {
        if (++e->depth > 10000) fail(e, TOO_DEEP);
        u32 first = e->nodes.p[a].a, second = make_cat(e, e->nodes.p[a].b, b);
        e->depth--;
        return make_cat(e, first, second);
    }
    u8 fa = flags_of(e, a), fb = flags_of(e, b);
    u8 flags = (fa & fb & F_NULLABLE) | ((fa | fb) & (F_BOOL | F_RULES));
    return intern(e, (Node){.kind = K_CAT, .flags = flags, .a = a, .b = b});
}

u32 make_repeat(Engine *e, u32 item, u32 low, u32 high) {
    if (high != NONE && low > high) return EMPTY;
    if (high == 0 || item == EPS) return EPS;
    if (item == EMPTY) return low ? EMPTY : EPS;
    if (low == 1 && high == 1) return item;
    Node n = e->nodes.p[item];
    if (n.kind == K_REP && n.b == 0 && n.c == NONE) return item;
    if (n.flags & F_NULLABLE) low = 0;
    u8 flags = (low == 0 ? F_NULLABLE : 0) | (n.flags & (F_BOOL | F_RULES));
    return intern(e, (Node){.kind = K_REP, .flags = flags, .a = item, .b = low, .c = high});
}

u32 make_not(Engine *e, u32 item) {
    Node n = e->nodes.p[item];
    if (n.kind == K_NOT) return n.a;
    if (item == EMPTY) return EVERYTHING;
    u8 flags = F_BOOL | (n.flags & F_NULLABLE ? 0 : F_NULLABLE);
    return intern(e, (Node){.kind = K_NOT, .flags = flags, .a = item});
}

u32 make_rule(Engine *e, u32 rule) { return intern(e, (Node){.kind = K_RULE, .flags = F_RULES, .a = rule}); }

static int compare_ids(const void *x, const void *y) {
    u32 a = *(const u32 *)x, b = *(const u32 *)y;
    return a < b ? -1 : a > b;
}

u32 sort_unique(u32 *ids, u32 n) {
    if (n > FEW) qsort(ids, n, sizeof *ids, compare_ids);
    for (u32 i = 1; i < n && n <= FEW; i++) { /* by insertion: no call for each pair */
        u32 id = ids[i], k = i;
        for (; k && ids[k - 1] > id; k--) ids[k] = ids[k - 1];
        ids[k] = id;
    }
    u32 kept = 0;
    for (u32 i = 0; i < n; i++)
        if (!kept || ids[kept - 1] != ids[i]) ids[kept++] = ids[i];
    return kept;
}

/* ---- counts: x{1,3}y | x{2,7}y is x{1,7}y ------------------------------------------------ */

static int compare_counts(const void *x, const void *y) {
    const Counts *a = x, *b = y;
    if (a->a != b->a) return a->a < b->a ? -1 : 1;
    if (a->b != b->b) return a->b < b->b ? -1 : 1;
    return a->low < b->low ? -1 : a->low > b->low;
}

u32 join_counts(Counts *c, u32 n) {
    qsort(c, n, sizeof *c, compare_counts);
    u32 kept = 0;
    for (u32 i = 0; i < n; i++) {
        Counts *last = kept ? &c[kept - 1] : NULL;
        if (last && last->a == c[i].a && last->b == c[i].b &&
            (last->high == NONE || c[i].low <= last->high + 1)) {
            if (last->high != NONE && (c[i].high == NONE || c[i].high > last->high))
                last->high = c[i].high;
        } else {
            c[kept++] = c[i];
        }
    }
    return kept;
}

/* A part as item, tail and counts, if it is a repeat or begins with one. */
static int as_counts(const Engine *e, u32 node, Counts *c) {
    Node n = e->nodes.p[node];
    u32 tail = EPS;
    if (n.kind == K_CAT) {
        tail = n.b;
        n = e->nodes.p[n.a];
    }
    if (n.kind != K_REP) return 0;
    *c = (Counts){n.a, tail, n.b, n.c};
    return 1;
}

static u32 join_repeats(Engine *e, u32 *parts, u32 n) {
    u32 num = 0, kept = 0;
    Counts c;
    for (u32 i = 0; i < n; i++) num += (u32)as_counts(e, parts[i], &c);
    if (num < 2) return n;
    Counts *counts = borrow(e, num * sizeof *counts);
    num = 0;
    for (u32 i = 0; i < n; i++)
        if (as_counts(e, parts[i], &c)) counts[num++] = c;
        else parts[kept++] = parts[i];
    num = join_counts(counts, num);
    for (u32 i = 0; i < num; i++)
        parts[kept++] = make_cat(e, make_repeat(e, counts[i].a, counts[i].low, counts[i].high), counts[i].b);
    give_back(e, counts);
    return sort_unique(parts, kept);
}

/* ---- sets of parts ----------------------------------------------------------------------- */

/* Copy parts, those of the given kind replaced by their own parts: to `few` if that has room; else the
   caller gives it back. */
static u32 *flatten(Engine *e, u8 kind, const u32 *parts, u32 n, u32 *few, u32 *count) {
    u32 total = 0, k = 0;
    for (u32 i = 0; i < n; i++) total += e->nodes.p[parts[i]].kind == kind ? e->nodes.p[parts[i]].b : 1;
    u32 *flat = total < FEW ? few : borrow(e, (total + 1) * sizeof *flat);
    for (u32 i = 0; i < n; i++) {
        Node node = e->nodes.p[parts[i]];
        if (node.kind != kind) flat[k++] = parts[i];
        else
            for (u32 j = 0; j < node.b; j++) flat[k++] = e->lists.p[node.a + j];
    }
    *count = sort_unique(flat, k);
    return flat;
}

static u32 merge_sets(Engine *e, u32 *parts, u32 n) {
    Mask all = {{0}};
    u32 kept = 0, sets = 0;
    for (u32 i = 0; i < n; i++) {
        Node node = e->nodes.p[parts[i]];
        if (node.kind == K_SET) {
            for (u32 w = 0; w < 4; w++) all.w[w] |= e->masks.p[node.a].w[w];
            sets++;
        } else if (parts[i] != EMPTY) {
            parts[kept++] = parts[i];
        }
    }
    if (sets) parts[kept++] = make_set(e, &all);
    return sort_unique(parts, kept);
}

u32 make_alt(Engine *e, u32 *given, u32 count) {
    u32 few[FEW], n, *parts = flatten(e, K_ALT, given, count, few, &n), node;
    n = join_repeats(e, parts, merge_sets(e, parts, n));
    u8 flags = 0;
    for (u32 i = 0; i < n; i++) flags |= flags_of(e, parts[i]) & (F_NULLABLE | F_BOOL | F_RULES);
    u32 low = n > 1 && parts[0] == EPS; /* sorted: fixed ids come first */
    if (n && parts[low] == EVERYTHING) node = EVERYTHING;
    else if (n == 0) node = EMPTY;
    else if (n == 1) node = parts[0];
    else node = intern_list(e, (Node){.kind = K_ALT, .flags = flags, .b = n}, parts);
    if (parts != few) give_back(e, parts);
    return node;
}

static u32 simplify_and(Engine *e, u32 *parts, u32 n, u8 flags) {
    for (u32 i = 0; i < n; i++) {
        if (parts[i] == EMPTY) return EMPTY;
        if (parts[i] == EPS) return flags & F_NULLABLE ? EPS : EMPTY;
        Node node = e->nodes.p[parts[i]];
        if (node.kind == K_NOT && bsearch(&node.a, parts, n, sizeof *parts, compare_ids)) return EMPTY;
    }
    return NONE;
}

/* Repeats of one item that is a prefix code count the same items, so their bounds intersect. */
static u32 meet_repeats(Engine *e, u32 *parts, u32 n) {
    for (u32 i = 0; i < n; i++)
        for (u32 j = i + 1; j < n; j++) {
            Node x = e->nodes.p[parts[i]], y = e->nodes.p[parts[j]];
            if (x.kind != K_REP || y.kind != K_REP || x.a != y.a || !is_code(e, x.a)) continue;
            u32 low = x.b > y.b ? x.b : y.b, high = x.c < y.c ? x.c : y.c; /* NONE is the largest */
            parts[i] = make_repeat(e, x.a, low, high);
            parts[j--] = parts[--n];
        }
    return sort_unique(parts, n);
}

u32 make_and(Engine *e, u32 *given, u32 count) {
    u32 few[FEW], n, *parts = flatten(e, K_AND, given, count, few, &n), kept = 0;
    if (n <= 16) n = meet_repeats(e, parts, n);
    u8 flags = F_NULLABLE | F_BOOL;
    for (u32 i = 0; i < n; i++) {
        if (parts[i] == EVERYTHING) continue;
        if (!(flags_of(e, parts[i]) & F_NULLABLE)) flags &= (u8)~F_NULLABLE;
        parts[kept++] = parts[i];
    }
    u32 node = simplify_and(e, parts, kept, flags);
    if (node == NONE) {
        if (kept == 0) node = EVERYTHING;
        else if (kept == 1) node = parts[0];
        else node = intern_list(e, (Node){.kind = K_AND, .flags = flags, .b = kept}, parts);
    }
    if (parts != few) give_back(e, parts);
    return node;
}

/* ---- many words: a range of a sorted table that share their first `depth` bytes ----------- */

/* `after`: the nodes that follow the words, NULL where nothing does. A word that the empty language
   follows is none: no text may begin with it. */
u32 add_words(Engine *e, const u8 *bytes, const u32 *lengths, u32 count, const u32 *after) {
    u32 table = e->tables.n, first = e->words.n, list = after ? e->lists.n : NONE, kept = 0;
    u8 flags = 0;
    RESERVE(e, e->lists, after ? count : 0);
    RESERVE(e, e->words, count);
    for (u32 i = 0; i < count; bytes += lengths[i++]) {
        if (after && after[i] == EMPTY) continue;
        if (after) {
            flags |= flags_of(e, after[i]) & (F_BOOL | F_RULES);
            e->lists.p[e->lists.n++] = after[i];
        }
        RESERVE(e, e->pool, lengths[i]);
        memcpy(e->pool.p + e->pool.n, bytes, lengths[i]);
        e->words.p[e->words.n++] = (Span){e->pool.n, lengths[i]};
        e->pool.n += lengths[i];
        kept++;
    }
    if (!kept) return EMPTY;
    PUSH(e, e->tables, ((WordTable){first, kept, list, flags}));
    return make_words(e, table, 0, kept, 0);
}

/* How many bytes from `depth` on two words share, one sorted before the other. */
static u32 shared(const Engine *e, Span one, Span other, u32 depth) {
    const u8 *a = e->pool.p + one.offset, *b = e->pool.p + other.offset;
    u32 end = one.length < other.length ? one.length : other.length, at = depth;
    while (at < end && a[at] == b[at]) at++;
    return at - depth;
}

/* What many share for long is one literal: a node for each byte of it would take much. */
u32 make_words(Engine *e, u32 table, u32 first, u32 end, u32 depth) {
    WordTable t = e->tables.p[table];
    Span s = e->words.p[t.first + first];
    if (end - first == 1) {
        u32 word = literal_at(e, s.offset + depth, s.length - depth);
        return t.after == NONE ? word : make_cat(e, word, e->lists.p[t.after + first]);
    }
    u32 common = s.length < depth + LONG ? 0 : shared(e, s, e->words.p[t.first + end - 1], depth);
    u32 from = depth + (common < LONG ? 0 : common);
    u8 flags = t.flags | (s.length == from ? F_NULLABLE : 0);
    u32 words = intern(e, (Node){.kind = K_WORDS, .flags = flags, .a = table, .b = first, .c = end, .d = from});
    return from > depth ? make_cat(e, literal_at(e, s.offset + depth, common), words) : words;
}

/* The words from `*from` on that share their next byte, as a node after that byte; `*from` moves
   on behind them. Start with `*from` = 0; NONE when there are no more. */
u32 words_split(Engine *e, u32 node, u32 *from, u32 *byte) {
    Node n = e->nodes.p[node];
    const Span *s = e->words.p + e->tables.p[n.a].first;
    u32 low = *from ? *from : n.b + (s[n.b].length == n.d);
    if (low >= n.c) return NONE;
    *byte = e->pool.p[s[low].offset + n.d];
    u32 inside = low, outside = n.c; /* binary search for the first word with another byte */
    while (outside - inside > 1) {
        u32 middle = inside + (outside - inside) / 2;
        if (e->pool.p[s[middle].offset + n.d] == *byte) inside = middle;
        else outside = middle;
    }
    *from = outside;
    return make_words(e, n.a, low, outside, n.d + 1);
}
