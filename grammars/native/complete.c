/* The shortest way to the end of a text, in bytes and in tokens.

   The cost of a node is the length of its shortest string of bytes that tokens have, so that where
   each of those bytes is a token by itself, bytes bound tokens. Rules are solved from above (D. Knuth's
   generalisation of Dijkstra's algorithm, IPL 6(1), 1977, by iteration); an alternative whose fixed
   part is no shorter than what is known is never expanded. Where an intersection is too large to say what
   is shortest, some short string is: its length is a bound, and so is what it is a part of. From a state,
   bytes that lower the cost spell a shortest completion; the fewest tokens that spell that text come from
   dynamic programming over its places. */
#include "engine.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_TEXT = 1 << 20, MAX_COUNTED = 1 << 16, MAX_DEPTH = 10000 };
enum { MAX_TRIED = 20000, FEW_TRIED = 500, GREED = 8 };
enum { UNSOLVED, OPEN, SOLVED };

static u32 add(u32 a, u32 b) { return a + b < NEVER ? a + b : NEVER; }

static u32 times(u32 n, u32 cost) {
    u64 product = (u64)n * cost;
    return product < NEVER ? (u32)product : NEVER;
}

/* ---- costs of expressions --------------------------------------------------------------------- */

static Mask usable_of(const Engine *e, const Mask *mask) {
    Mask both = *mask;
    for (u32 w = 0; w < 4; w++) both.w[w] &= e->trie.usable.w[w];
    return both;
}

static int is_usable(const Engine *e, const u8 *bytes, u32 length) {
    if (mask_size(&e->trie.usable) == 256) return 1;
    for (u32 i = 0; i < length; i++)
        if (!has(&e->trie.usable, bytes[i])) return 0;
    return 1;
}

/* The order of `ways`: what may be shortest in all first, and of that the longest so far. */
static int is_better(const Way *x, const Way *y) {
    return x->bound != y->bound ? x->bound < y->bound : x->length > y->length;
}

/* About how far an end is, where each part of an intersection wants bytes of its own. */
static u32 estimate(Engine *e, u32 node) {
    Node n = e->nodes.p[node];
    if (!(n.flags & F_BOOL) || e->depth > MAX_DEPTH / 2) return at_least(e, node);
    e->depth++;
    u32 found = n.kind == K_ALT ? NEVER : 0;
    switch (n.kind) {
    case K_ALT:
    case K_AND:
        for (u32 i = 0; i < n.b; i++) {
            u32 part = estimate(e, e->lists.p[n.a + i]);
            if (n.kind == K_AND) found = add(found, part);
            else if (part < found) found = part;
        }
        break;
    case K_CAT: found = add(estimate(e, n.a), estimate(e, n.b)); break;
    default: found = at_least(e, node);
    }
    e->depth--;
    return found;
}

static void add_way(Engine *e, u32 node, u32 length, u32 from, u32 greed) {
    u32 known = e->nodes.p[node].cost;
    u32 left = known ? known - 1 : greed == 1 ? at_least(e, node) : estimate(e, node);
    if (left >= NEVER) return;
    Way way = {node, length, greed ? add(length, times(greed, left)) : left, from};
    PUSH(e, e->ways, way);
    u32 i = e->ways.n - 1;
    for (Way *p = e->ways.p; i && is_better(&way, &p[(i - 1) / 2]); i = (i - 1) / 2) p[i] = p[(i - 1) / 2];
    e->ways.p[i] = way;
}

static Way best_way(Engine *e) {
    Way *p = e->ways.p, best = p[0], last = p[--e->ways.n];
    u32 i = 0, n = e->ways.n;
    for (u32 c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && is_better(&p[c + 1], &p[c])) c++;
        if (!is_better(&p[c], &last)) break;
        p[i] = p[c];
    }
    p[i] = last;
    return best;
}

/* Best first over derivatives, by the length so far and a bound of the rest (P. Hart, N. Nilsson,
   B. Raphael, IEEE TSSC 4(2), 1968); each byte lowers the bound by one at most, so that the first way
   to a node is a shortest. A node of known cost is an end that far away. With greed the rest counts as
   so many times what it seems (I. Pohl, Artificial Intelligence 1, 1970): then the end that is found may
   not be the nearest; greed 0 goes deep where nothing seems nearer. NONE where more than `most` nodes are
   met, or half of the work that may be done is. */
static u32 best_first(Engine *e, u32 node, u32 most, u32 greed) {
    u32 mark = ++e->mark;
    u64 half = e->fuel / 2;
    e->ways.n = e->tried.n = 0;
    add_way(e, node, 0, NONE, greed);
    while (e->ways.n) {
        Way here = best_way(e);
        Node n = e->nodes.p[here.node];
        if (n.cost || n.flags & F_NULLABLE) {
            u32 cost = here.length + (n.cost ? n.cost - 1 : 0);
            for (u32 i = here.from; i != NONE; i = e->tried.p[i].from) {
                Node *passed = &e->nodes.p[e->tried.p[i].node];
                passed->flags |= F_ALIVE;
                if (passed->kind == K_AND || passed->kind == K_NOT) passed->cost = cost - e->tried.p[i].length + 1;
            }
            return cost;
        }
        if (n.mark == mark) continue;
        e->nodes.p[here.node].mark = mark;
        if (e->tried.n == most || e->fuel < half) return NONE;
        u32 from = e->tried.n;
        PUSH(e, e->tried, here);
        if (n.kind == K_ALT) { /* each alternative is followed by itself, and so has a cost of its own */
            for (u32 i = 0; i < n.b; i++) add_way(e, e->lists.p[n.a + i], here.length, from, greed);
            continue;
        }
        u32 list = classes_of(e, here.node);
        for (u32 c = 1; c <= e->lists.p[list]; c++) {
            Mask class = usable_of(e, &e->masks.p[e->lists.p[list + c]]);
            u32 byte = lowest(&class), next = byte < 256 ? derive(e, here.node, byte) : EMPTY;
            if (next != EMPTY && e->nodes.p[next].mark != mark)
                add_way(e, next, here.length + 1, from, greed);
        }
    }
    return NEVER;
}

/* The length of some string of a node, NEVER where it has none of what tokens have; NONE where neither is
   soon found. */
u32 some_length(Engine *e, u32 node, u32 most) {
    u32 cost = best_first(e, node, most, GREED);
    return cost == NONE ? best_first(e, node, most, 0) : cost;
}

/* What is met without an end, and what is derived from it, is not searched through at length again. */
static u32 opaque_cost(Engine *e, u32 node) {
    u32 cost = best_first(e, node, e->nodes.p[node].flags & F_FAR ? FEW_TRIED : MAX_TRIED, 1);
    if (cost != NONE) return cost;
    for (u32 i = 0; i < e->tried.n; i++) e->nodes.p[e->tried.p[i].node].flags |= F_FAR;
    u32 most = patient(e, MAX_TRIED);
    cost = some_length(e, node, most);
    if (cost != NONE) return cost;
    lose_patience(e, most);
    e->lost_cost = 1;
    return NEVER; /* no budget lets a text begin what nobody knows how to end */
}

/* A bound from below that expands no rule. */
static u32 floor_cost(const Engine *e, u32 node) {
    Node n = e->nodes.p[node];
    if (n.cost) return n.cost - 1;
    u32 sum = 0;
    switch (n.kind) {
    case K_SET: return 1;
    case K_LIT: return n.b;
    case K_RULE:
        if (e->rules.p[n.a].solved == SOLVED) return e->rules.p[n.a].cost;
        return e->rules.p[n.a].chain ? 1 : 0; /* a mark or a word comes first */
    case K_CAT:
        for (; e->nodes.p[node].kind == K_CAT; node = e->nodes.p[node].b)
            sum = add(sum, floor_cost(e, e->nodes.p[node].a));
        return add(sum, floor_cost(e, node));
    default: return 0;
    }
}

static u32 cost_now(Engine *e, u32 node);

static u32 cheapest(Engine *e, Node n) {
    u32 best = NEVER;
    for (u32 with_rules = 0; with_rules < 2; with_rules++)
        for (u32 i = 0; i < n.b; i++) {
            u32 part = e->lists.p[n.a + i];
            if (((e->nodes.p[part].flags & F_RULES) != 0) != with_rules) continue;
            if (floor_cost(e, part) >= best) continue;
            u32 cost = cost_now(e, part);
            if (cost < best) best = cost;
        }
    return best;
}

/* Words that nothing follows, or only what has no rule, come first: they may spare an expansion. */
static u32 words_cost(Engine *e, Node n) {
    u32 best = NEVER;
    WordTable t = e->tables.p[n.a];
    for (u32 with_rules = 0; with_rules < 2; with_rules++)
        for (u32 i = n.b; i < n.c; i++) {
            Span word = e->words.p[t.first + i];
            u32 length = word.length - n.d, after = t.after == NONE ? EPS : e->lists.p[t.after + i];
            if (((e->nodes.p[after].flags & F_RULES) != 0) != with_rules) continue;
            if (add(length, floor_cost(e, after)) >= best) continue;
            if (!is_usable(e, e->pool.p + word.offset + n.d, length)) continue;
            u32 cost = add(length, cost_now(e, after));
            if (cost < best) best = cost;
        }
    return best;
}

/* Where the shortest text of a rule is looked for: its body, or the part that is said to have it. */
static u32 rule_way(Engine *e, u32 rule) {
    if (!e->rules.p[rule].has_way) return rule_body(e, rule, 0);
    if (!e->rules.p[rule].way) {
        i32 answer = e->rules.p[rule].chain ? (i32)braid_way(e, rule) : e->expand(rule, 2); /* may add anything */
        if (answer < 0) fail(e, CALLBACK);
        e->rules.p[rule].way = (u32)answer + 1;
    }
    return e->rules.p[rule].way - 1;
}

static int is_unsolved(const Engine *e, u32 rule) { return e->rules.p[rule].solved == UNSOLVED; }

static u32 open_rule(Engine *e, u32 rule) {
    if (is_unsolved(e, rule) && e->rules.p[rule].chain) from_end(e, rule, is_unsolved, open_rule);
    if (is_unsolved(e, rule)) {
        e->rules.p[rule].solved = OPEN;
        e->rules.p[rule].cost = NEVER;
        PUSH(e, e->open_rules, rule);
        u32 cost = cost_now(e, rule_way(e, rule));
        if (cost == NEVER && e->rules.p[rule].has_way) { /* no token has some byte of it: look everywhere */
            e->rules.p[rule].has_way = 0;
            cost = cost_now(e, rule_way(e, rule));
        }
        if (cost < e->rules.p[rule].cost) e->rules.p[rule].cost = cost;
    }
    return e->rules.p[rule].cost;
}

static u32 compute_cost(Engine *e, u32 node, Node n) {
    u32 sum = 0;
    switch (n.kind) {
    case K_EMPTY: return NEVER;
    case K_EPS: return 0;
    case K_SET: {
        Mask usable = usable_of(e, &e->masks.p[n.a]);
        return mask_size(&usable) ? 1 : NEVER;
    }
    case K_LIT: return is_usable(e, e->pool.p + n.a, n.b) ? n.b : NEVER;
    case K_ALT: return cheapest(e, n);
    case K_REP: return n.b ? times(n.b, cost_now(e, n.a)) : 0;
    case K_WORDS: return words_cost(e, n);
    case K_RULE: return open_rule(e, n.a);
    case K_CAT:
        do sum = add(sum, cost_now(e, e->nodes.p[node].a));
        while (node = e->nodes.p[node].b, e->nodes.p[node].kind == K_CAT && !e->nodes.p[node].cost);
        return add(sum, cost_now(e, node));
    default: return opaque_cost(e, node);
    }
}

/* Keep the cost of a node, once it is right for good, and with it the costs of what is left of it behind
   each of its parts: they are asked for one after the other. */
static void keep_cost(Engine *e, u32 node, u32 cost) {
    e->nodes.p[node].cost = cost + 1;
    for (Node n = e->nodes.p[node]; cost < NEVER && n.kind == K_CAT; n = e->nodes.p[n.b]) {
        if (e->nodes.p[n.b].cost) return;
        cost -= cost_now(e, n.a);
        e->nodes.p[n.b].cost = cost + 1;
    }
}

static u32 cost_now(Engine *e, u32 node) {
    Node n = e->nodes.p[node];
    if (n.cost) return n.cost - 1;
    if (++e->depth > MAX_DEPTH) fail(e, TOO_DEEP);
    spend(e, 1);
    u32 cost = compute_cost(e, node, n);
    e->depth--;
    if (!(n.flags & F_RULES)) keep_cost(e, node, cost);
    return cost;
}

/* Lower the costs of the rules met until none changes; then they are right for good. */
static void settle(Engine *e) {
    for (int changed = 1; changed;) {
        changed = 0;
        for (u32 i = 0; i < e->open_rules.n; i++) {
            u32 rule = e->open_rules.p[i], cost = cost_now(e, rule_way(e, rule));
            if (cost >= e->rules.p[rule].cost) continue;
            e->rules.p[rule].cost = cost;
            changed = 1;
        }
    }
    while (e->open_rules.n) e->rules.p[e->open_rules.p[--e->open_rules.n]].solved = SOLVED;
}

u32 node_cost(Engine *e, u32 node) {
    if (!(e->nodes.p[node].flags & F_RULES)) return cost_now(e, node);
    while (e->open_rules.n) /* left by a search that failed */
        e->rules.p[e->open_rules.p[--e->open_rules.n]].solved = UNSOLVED;
    if (e->nodes.p[node].cost) return e->nodes.p[node].cost - 1;
    cost_now(e, node);
    settle(e);
    u32 cost = cost_now(e, node);
    if (!e->open_rules.n) keep_cost(e, node, cost);
    return cost;
}

/* ---- costs of stacks and states ----------------------------------------------------------------- */

u32 stack_cost(Engine *e, u32 tail) {
    u32 best = NEVER;
    if (tail & IS_SET) {
        for (u32 i = 0; i < tail_count(e, tail); i++) {
            u32 cost = stack_cost(e, tail_at(e, tail, i));
            if (cost < best) best = cost;
        }
        return best;
    }
    if (!e->stacks.p[tail].cost) {
        if (++e->depth > MAX_DEPTH) fail(e, TOO_DEEP);
        u32 below = stack_cost(e, e->stacks.p[tail].tail);
        e->depth--;
        e->stacks.p[tail].cost = add(node_cost(e, e->stacks.p[tail].head), below) + 1;
    }
    return e->stacks.p[tail].cost - 1;
}

u32 state_cost(Engine *e, u32 state) { return state ? stack_cost(e, e->states.p[state].kernel) : NEVER; }

/* ---- texts and tokens ----------------------------------------------------------------------------- */

/* The next byte of a shortest completion, letters before others; moves `*state` on. */
static u8 cheapest_byte(Engine *e, u32 *state) {
    static const u8 liked[] = "a01x ";
    Mask first = first_bytes(e, *state), all = usable_of(e, &first);
    u32 goal = state_cost(e, *state) - 1;
    u8 tried[256] = {0};
    for (u32 i = 0; i < 256 + sizeof liked - 1; i++) {
        u32 byte = i < sizeof liked - 1 ? liked[i] : i - (u32)(sizeof liked - 1);
        u8 class = e->maps.p[(size_t)e->states.p[*state].map * 256 + byte];
        if (tried[class] || !has(&all, byte)) continue;
        tried[class] = 1;
        u32 next = step(e, *state, byte);
        if (next == DEAD || state_cost(e, next) > goal) continue;
        *state = next;
        return (u8)byte;
    }
    fail(e, UNDECIDED); /* costs are exact, so some byte lowers them */
    return 0;
}

/* Where a shortest text goes from a state that does not end, once asked for. */
static u32 way_of(Engine *e, u32 state) {
    if (!e->states.p[state].way) {
        u32 next = state;
        u8 byte = cheapest_byte(e, &next);
        e->states.p[state].way = next;
        e->states.p[state].byte = byte;
    }
    return e->states.p[state].way;
}

static u32 child(const Trie *t, u32 node, u8 byte) {
    for (u32 kid = t->nodes[node].kids; kid < t->nodes[node + 1].kids && t->kids.byte[kid] <= byte; kid++)
        if (t->kids.byte[kid] == byte) return t->kids.node[kid];
    return 0;
}

typedef struct { u32 number, token, end; } Spelling; /* tokens, the first of them, where that ends */

/* The fewest tokens of the text from a state, of whose other places these are known. */
static Spelling fewest_tokens(const Engine *e, u32 state) {
    Spelling best = {NEVER, 0, 0};
    for (u32 at = state, node = 0; e->states.p[at].way && (node = child(&e->trie, node, e->states.p[at].byte));) {
        at = e->states.p[at].way;
        u32 number = e->states.p[at].tokens; /* one more than from there */
        if (e->trie.nodes[node].token < 0 || number >= best.number) continue;
        best = (Spelling){number, (u32)e->trie.nodes[node].token, at};
    }
    return best;
}

/* Dynamic programming over the places of a text. What is left of it is the text of the state there, so
   that what is known of one serves all that run into it. */
static void spell(Engine *e, u32 state) {
    if (state_cost(e, state) > MAX_TEXT) fail(e, TOO_LARGE);
    e->route.n = 0;
    for (u32 at = state; !e->states.p[at].tokens; at = way_of(e, at)) {
        PUSH(e, e->route, at);
        if (!state_cost(e, at)) break;
    }
    while (e->route.n) {
        u32 at = e->route.p[--e->route.n], next = e->states.p[at].way;
        e->states.p[at].tokens = 1 + (next ? fewest_tokens(e, at).number : 0);
        if (!next) continue;
        int skips = state_cost(e, next) + 1 < state_cost(e, at);
        if (skips || e->states.p[next].flags & S_SKIPS) e->states.p[at].flags |= S_SKIPS;
    }
}

/* A text shorter than its cost met a rule whose cost was given (hooks.c) and may not be allowed:
   then the cost, in bytes, bounds the tokens; as it does where there are too many to spell. */
u32 tokens_of(Engine *e, u32 state) {
    u32 cost = state_cost(e, state);
    if (cost == NEVER || cost > MAX_COUNTED) return cost;
    if (!e->states.p[state].tokens) spell(e, state);
    return e->states.p[state].flags & S_SKIPS ? cost : e->states.p[state].tokens - 1;
}

u32 spell_shortest(Engine *e, u32 state, u32 *out, u32 room) {
    if (!out || state_cost(e, state) == NEVER) return tokens_of(e, state);
    spell(e, state);
    for (u32 n = 0, at = state; n < room && e->states.p[at].way; n++) {
        Spelling best = fewest_tokens(e, at);
        if (best.number == NEVER) break;
        out[n] = best.token;
        at = best.end;
    }
    return e->states.p[state].tokens - 1;
}
