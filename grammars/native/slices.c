/* The vocabulary as one loop sees it, computed once and used wherever the loop stands.

   For a loop item such as "one character of a JSON string" one walk sorts the tokens: those that
   stay inside the loop, by how many items they touch, and those that leave it between two items,
   by the byte with which they leave (exits). That holds for any bounds of the loop and anything
   that follows it, as long as the item is a prefix code and what follows begins otherwise. */
#include "walks.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_MERGED = 60000, FEW_KIDS = 24, FEW_BETWEEN = 400 };

/* ---- building ------------------------------------------------------------------------------- */

/* All tokens of a branch that stay inside, where each byte from some depth on is an item. */
static void add_inside(const Trie *t, CountedList *inside, u32 node, u32 passed) {
    u32 first = t->nodes[node].first, end = t->nodes[node + t->nodes[node].size].first;
    Counted *to = inside->p + inside->n - first;
    for (u32 i = first; i < end; i++) {
        u32 length = t->lengths[i];
        to[i] = (Counted){t->order[i], passed + (length < 255 ? length : token_length(t, t->order[i]))};
    }
    inside->n += end - first;
}

/* Walk the whole trie through the loop; 0 when the item is not a prefix code. Beside a state stand the
   items touched so far, doubled, plus one between two items. */
static int sort_tokens(Engine *e, Slice *s, CountedList *inside, ExitList *exits) {
    const Trie *t = &e->trie;
    u32 depth = 0;
    RESERVE(e, e->slice_levels, t->max_depth + 2);
    RESERVE(e, *inside, t->num_tokens);
    u64 single = groups_to(e, s->start, state_of(e, LOOP_END)); /* of which each byte is an item */
    e->slice_levels.p[0] = (Level){0, t->nodes[1].kids, s->start, 1};
    while (depth != NONE) {
        Level *level = &e->slice_levels.p[depth];
        if (level->kid == level->end) {
            depth--;
            continue;
        }
        u32 kid = level->kid++, count = level->other, byte = t->kids.byte[kid], i = t->kids.node[kid];
        u32 next = step(e, level->state, byte);
        if (next == DEAD) {
            if (count & 1) PUSH(e, *exits, ((Exit){i, count >> 1, (u8)byte}));
            continue;
        }
        if (count & 1 && !(t->nodes[i].groups & ~single)) {
            add_inside(t, inside, i, (count >> 1) - depth);
            continue;
        }
        count = (count >> 1) + (count & 1);
        close_if_open(e, next); /* to know whether it ends */
        int whole = (e->states.p[next].flags & S_ENDS) != 0;
        if (whole && e->states.p[next].kernel != LOOP_END) return 0;
        TOKENS_AT(t, i, k) inside->p[inside->n++] = (Counted){k, count};
        if (!whole && t->nodes[i].token >= 0) {
            u32 cost = state_cost(e, next);
            if (cost > s->dearest) s->dearest = cost;
        }
        e->slice_levels.p[++depth] =
            (Level){t->nodes[i].kids, t->nodes[i + 1].kids, whole ? s->start : next, count << 1 | (u32)whole};
    }
    return 1;
}

void keep_exits(Engine *e, Slice *s, const ExitList *exits) {
    u32 at[256];
    s->exits = take(e, exits->n * sizeof *s->exits);
    for (u32 i = 0; i < exits->n; i++) s->exit_end[exits->p[i].byte + 1]++;
    for (u32 b = 1; b < 257; b++) s->exit_end[b] += s->exit_end[b - 1];
    memcpy(at, s->exit_end, sizeof at);
    for (u32 i = 0; i < exits->n; i++) s->exits[at[exits->p[i].byte]++] = exits->p[i];
}

static void keep_inside(Engine *e, Slice *s, const CountedList *inside) {
    for (u32 i = 0; i < inside->n; i++)
        if (inside->p[i].count > s->max_count) s->max_count = inside->p[i].count;
    s->by_count = take(e, inside->n * sizeof(u32));
    s->count_end = take(e, (s->max_count + 2) * sizeof(u32));
    s->rows = take(e, (s->max_count + 1) * sizeof(u32));
    memset(s->rows, 0xFF, (s->max_count + 1) * sizeof(u32));
    for (u32 i = 0; i < inside->n; i++) s->count_end[inside->p[i].count + 1]++;
    for (u32 c = 1; c <= s->max_count + 1; c++) s->count_end[c] += s->count_end[c - 1];
    for (u32 i = 0; i < inside->n; i++) s->by_count[s->count_end[inside->p[i].count]++] = inside->p[i].token;
}

/* The slice of a loop item; NULL where there is none: rules, items that are no prefix code. */
Slice *slice_of(Engine *e, u32 item) {
    Node n = e->nodes.p[item];
    if (n.slice) return e->slices.p[n.slice - 1]->usable ? e->slices.p[n.slice - 1] : NULL;
    if (n.flags & (F_NULLABLE | F_RULES)) return NULL;
    Slice *s = take(e, sizeof *s);
    PUSH(e, e->slices, s);
    s->item = item;
    s->start = state_of(e, push(e, item, LOOP_END));
    s->first = first_bytes(e, s->start);
    e->inside.n = e->exits.n = 0;
    s->usable = (u8)sort_tokens(e, s, &e->inside, &e->exits);
    if (s->usable) {
        keep_inside(e, s, &e->inside);
        keep_exits(e, s, &e->exits);
    }
    e->nodes.p[item].slice = e->slices.n;
    return s->usable ? s : NULL;
}

/* Whether an item is known to be a prefix code: no string of it begins another. */
int is_code(const Engine *e, u32 item) {
    Node n = e->nodes.p[item];
    return n.kind == K_SET || (n.slice && e->slices.p[n.slice - 1]->usable);
}

/* That what stays inside is counted as another slice has it, whose loop it is within too; NULL: not at all. */
void keep_counts(Engine *e, Slice *s, const Slice *counted) {
    s->counted = counted;
    s->max_count = counted ? counted->max_count : 0;
    s->rows = take(e, (s->max_count + 1) * sizeof(u32));
    memset(s->rows, 0xFF, s->max_count * sizeof(u32));
    s->rows[s->max_count] = s->row;
}

/* The tokens that touch more items than one count and no more than the other. */
static Span between(const Slice *all, u32 one, u32 other) {
    u32 low = one < other ? one : other, high = one < other ? other : one;
    return (Span){all->count_end[low], all->count_end[high] - all->count_end[low]};
}

/* The count whose row is there and differs least from another's, NONE without any. */
static u32 nearest_count(const Slice *s, const Slice *all, u32 count) {
    u32 best = NONE;
    for (u32 c = 0; c <= s->max_count; c++)
        if (s->rows[c] != NONE && (best == NONE || between(all, c, count).length < between(all, best, count).length)) best = c;
    return best;
}

/* The row of the tokens that touch at most `count` items, made of the nearest that there is. */
static u32 make_row(Engine *e, Slice *s, const Slice *all, u32 count) {
    u32 bytes = e->trie.num_words * (u32)sizeof(u32), *row = borrow(e, bytes), near = nearest_count(s, all, count);
    const u32 *inside = s->counted ? e->rows.p[s->row] : NULL;
    Span some = {0, all->count_end[count]};
    if (near != NONE && between(all, near, count).length < some.length) {
        some = between(all, near, count);
        memcpy(row, e->rows.p[s->rows[near]], bytes);
    } else {
        memset(row, 0, bytes);
    }
    for (u32 i = some.offset; i < some.offset + some.length; i++) {
        u32 word = all->by_count[i] >> 5, bit = 1u << (all->by_count[i] & 31);
        row[word] ^= inside ? inside[word] & bit : bit;
    }
    s->rows[count] = add_row(e, row);
    give_back(e, row);
    return s->rows[count];
}

/* A row of the tokens that touch at most `count` items but for the few that are added to `hits`: of a long
   text most places share the row of all tokens. */
u32 row_within(Engine *e, Slice *s, u32 count) {
    const Slice *all = s->counted ? s->counted : s;
    if (count > s->max_count) count = s->max_count;
    if (s->rows[count] != NONE) return s->rows[count];
    if (between(all, count, s->max_count).length <= FEW_BETWEEN && s->rows[s->max_count] == NONE)
        make_row(e, s, all, s->max_count);
    u32 near = nearest_count(s, all, count);
    if (near == NONE || between(all, near, count).length > FEW_BETWEEN) return make_row(e, s, all, count);
    const u32 *inside = s->counted ? e->rows.p[s->row] : NULL;
    Span some = between(all, near, count);
    for (u32 i = some.offset; i < some.offset + some.length; i++) {
        u32 token = all->by_count[i];
        if (!inside || inside[token >> 5] >> (token & 31) & 1) PUSH(e, e->hits, token);
    }
    return s->rows[near];
}

/* ---- what follows: the rests of all tokens that leave with one byte, as one trie -------------- */

/* Do something with each kid of the trie nodes of a group, of which `k` is the parent. */
#define EACH_KID(t, group, n, kid, then)                                                          \
    for (u32 k = 0; k < (n); k++) {                                                               \
        u32 end = (t)->nodes[(group)[k].node + 1].kids;                                           \
        for (u32 kid = (t)->nodes[(group)[k].node].kids; kid < end; kid++) then;                  \
    }

/* The kids of a group of `merged`, sorted by byte, behind it there; returns how many. */
static u32 add_kids(Engine *e, u32 first, u32 n) {
    const Trie *t = &e->trie;
    u32 num = 0, kept = 0;
    for (u32 i = first; i < first + n; i++)
        num += t->nodes[e->merged.p[i].node + 1].kids - t->nodes[e->merged.p[i].node].kids;
    if (!num) return 0;
    RESERVE(e, e->merged, num);
    const Exit *group = e->merged.p + first;
    Exit *kids = e->merged.p + e->merged.n;
    e->merged.n += num;
    if (n == 1 || num <= FEW_KIDS) { /* those of one node are in order */
        EACH_KID(t, group, n, kid, {
            u32 i = kept++;
            for (; n > 1 && i && kids[i - 1].byte > t->kids.byte[kid]; i--) kids[i] = kids[i - 1];
            kids[i] = ((Exit){t->kids.node[kid], group[k].count, t->kids.byte[kid]});
        })
        return num;
    }
    u32 start[257] = {0};
    EACH_KID(t, group, n, kid, start[t->kids.byte[kid] + 1]++)
    for (u32 b = 1; b < 257; b++) start[b] += start[b - 1];
    EACH_KID(t, group, n, kid, {
        u8 byte = t->kids.byte[kid];
        kids[start[byte]++] = ((Exit){t->kids.node[kid], group[k].count, byte});
    })
    return num;
}

static void start_rests(Engine *e) { e->rests.byte.n = e->rests.depth.n = e->rests.first.n = e->rests.tokens.n = 0; }

static void add_rest(Engine *e, u8 byte, u32 depth) {
    PUSH(e, e->rests.byte, byte);
    PUSH(e, e->rests.depth, depth);
    PUSH(e, e->rests.first, e->rests.tokens.n);
}

/* What was merged, to be walked. */
static Remainders *keep_rests(Engine *e) {
    u32 n = e->rests.byte.n, num = e->rests.tokens.n;
    u32 *path = borrow(e, (e->trie.max_depth + 2) * sizeof *path), *first = borrow(e, (n + 1) * sizeof *first);
    size_t nodes = (n + 1) * sizeof(Rest), tokens = num * sizeof(Counted), kids = n * sizeof(u32);
    Remainders *r = take(e, sizeof *r + nodes + tokens + kids + n);
    r->num_nodes = n;
    r->nodes = (Rest *)(r + 1);
    r->tokens = (Counted *)(r->nodes + n + 1);
    r->kids.node = (u32 *)(r->tokens + num);
    r->kids.byte = (u8 *)(r->kids.node + n);
    index_kids(e->rests.byte.p, e->rests.depth.p, n, path, first, r->kids);
    r->nodes[n] = (Rest){0, first[n], num, 0, 0};
    for (u32 i = n; i-- > 0;) {
        u8 byte = e->rests.byte.p[i];
        r->nodes[i] = (Rest){i ? 1ull << e->trie.group[byte] : 0, first[i], e->rests.first.p[i], 1, 0};
        for (u32 kid = first[i]; kid < first[i + 1]; kid++) {
            Rest below = r->nodes[r->kids.node[kid]];
            r->nodes[i].groups |= below.groups;
            r->nodes[i].size += below.size;
            if (below.height >= r->nodes[i].height) r->nodes[i].height = (u8)(below.height < 255 ? below.height + 1 : 255);
        }
    }
    if (num) memcpy(r->tokens, e->rests.tokens.p, tokens);
    give_back(e, first);
    give_back(e, path);
    return r;
}

static void merge(Engine *e, u32 first, u32 n, u32 depth) {
    const Trie *t = &e->trie;
    u32 kids = e->merged.n;
    add_rest(e, e->merged.p[first].byte, depth);
    for (u32 i = first; i < first + n; i++)
        TOKENS_AT(t, e->merged.p[i].node, k)
            PUSH(e, e->rests.tokens, ((Counted){k, e->merged.p[i].count}));
    u32 total = add_kids(e, first, n);
    for (u32 i = 0, j; i < total; i = j) {
        u8 byte = e->merged.p[kids + i].byte;
        for (j = i + 1; j < total && e->merged.p[kids + j].byte == byte; j++) continue;
        merge(e, kids + i, j - i, depth + 1);
    }
    e->merged.n = kids;
}

static void merge_exits(Engine *e, Slice *s, u32 byte) {
    u32 from = s->exit_end[byte], count = s->exit_end[byte + 1] - from;
    u64 nodes = 0;
    for (u32 i = 0; i < count; i++) nodes += (u64)e->trie.nodes[s->exits[from + i].node].size;
    if (nodes && nodes <= MAX_MERGED) {
        start_rests(e);
        e->merged.n = 0;
        RESERVE(e, e->merged, count);
        memcpy(e->merged.p, s->exits + from, count * sizeof *e->merged.p);
        e->merged.n = count;
        merge(e, 0, count, 0);
        s->remainders[byte] = keep_rests(e);
    }
    s->merged[byte] = 1;
}

/* The trie without the branches whose tokens all stay inside. */
static void build_outside(Engine *e, Slice *s) {
    const Trie *t = &e->trie;
    u32 inside = s->count_end[s->max_count], num = t->nodes[t->num_nodes].first;
    u32 *before = borrow(e, (num + 1) * sizeof *before); /* by place in `order`: tokens before it that are not */
    u8 *within = borrow(e, t->num_tokens);
    memset(within, 0, t->num_tokens);
    for (u32 i = 0; i < inside; i++) within[s->by_count[i]] = 1;
    before[0] = 0;
    for (u32 i = 0; i < num; i++) before[i + 1] = before[i] + !within[t->order[i]];
    start_rests(e);
    for (u32 i = 0; i < t->num_nodes;) {
        TrieNode here = t->nodes[i];
        if (i && before[here.first] == before[t->nodes[i + here.size].first]) {
            i += here.size;
            continue;
        }
        add_rest(e, here.byte, here.depth);
        TOKENS_AT(t, i, k)
            if (!within[k]) PUSH(e, e->rests.tokens, ((Counted){k, 0}));
        i++;
    }
    s->outside = keep_rests(e);
    give_back(e, within);
    give_back(e, before);
}

/* The tokens from one node to another, of those with so many items. */
static void add_counted(Engine *e, const Remainders *r, u32 node, u32 end, u32 low, u32 high, u32 state) {
    u32 n = e->hits.n, first = r->nodes[node].tokens, last = r->nodes[end].tokens;
    if (first == last) return;
    RESERVE(e, e->hits, last - first);
    for (u32 k = first; k < last; k++) {
        e->hits.p[n] = r->tokens[k].token;
        n += r->tokens[k].count >= low && r->tokens[k].count <= high;
    }
    if (n == e->hits.n) return;
    e->hits.n = n;
    weigh(e, state);
}

/* As in walks.c: follow the literals that an open state begins with. */
static u32 read_literals(Engine *e, const Remainders *r, u32 *node, u32 state, u32 low, u32 high) {
    for (Span text = literal_of(e, state); text.length; text = literal_of(e, state)) {
        for (u32 i = 0; i < text.length; i++) {
            const Rest *n = &r->nodes[*node];
            *node = kid_with(&r->kids, n->kids, n[1].kids, e->pool.p[text.offset + i]);
            if (!*node) return DEAD;
            add_counted(e, r, *node, *node + 1, low, high, DEAD);
        }
        state = behind_literal(e, state);
    }
    return state;
}

static void walk_remainders(Engine *e, const Remainders *r, u32 state, u32 low, u32 high) {
    RESERVE(e, e->levels, e->trie.max_depth + 2);
    u32 visited = 0, depth = 0, first = 0;
    Visits visits = {{DEAD}, {0}, {0}};
    add_counted(e, r, 0, 1, low, high, state);
    if (!e->weigh) state = read_literals(e, r, &first, state, low, high);
    if (state == DEAD) return;
    close_if_open(e, state);
    e->levels.p[0] = (Level){r->nodes[first].kids, r->nodes[first + 1].kids, state, 0};
    while (depth != NONE) {
        Level *level = &e->levels.p[depth];
        u32 kid = next_kid(e, level->state, r->kids.byte, level->kid, level->end);
        visited += kid - level->kid + (kid < level->end);
        level->kid = kid + 1;
        if (kid == level->end) {
            depth--;
            continue;
        }
        u32 next = step(e, level->state, r->kids.byte[kid]), node = r->kids.node[kid];
        if (next == DEAD) continue;
        if (!e->weigh) {
            Pass pass = pass_of(e, &visits, level->state, next, 0);
            u32 end = node + r->nodes[node].size;
            if (!(r->nodes[node].groups & ~pass.groups) && r->nodes[node].height < pass.bytes) {
                add_counted(e, r, node, end, low, high, DEAD);
                continue;
            }
        }
        add_counted(e, r, node, node + 1, low, high, next);
        if (!e->weigh) next = read_literals(e, r, &node, next, low, high);
        if (next == DEAD || r->nodes[node].kids == r->nodes[node + 1].kids) continue;
        close_if_open(e, next);
        e->levels.p[++depth] = (Level){r->nodes[node].kids, r->nodes[node + 1].kids, next, 0};
    }
    e->steps += visited;
}

static void walk_exits(Engine *e, const Slice *s, u32 byte, u32 state, u32 low, u32 high) {
    for (u32 i = s->exit_end[byte]; i < s->exit_end[byte + 1]; i++) {
        Exit x = s->exits[i];
        if (x.count < low || x.count > high) continue;
        add_hits(e, x.node, state);
        walk(e, state, x.node, ~0ull);
    }
}

/* The states met are asked what they cost only now: few slices are ever asked. */
u32 dearest_of(Engine *e, Slice *s) {
    for (; s->num_met; s->num_met--) {
        u32 cost = state_cost(e, e->lists.p[s->met + s->num_met - 1]);
        if (cost > s->dearest) s->dearest = cost;
    }
    return s->dearest;
}

/* Collect in `hits` the tokens that leave the loop, with `low` to `high` items left, for `tail`. */
void slice_hits(Engine *e, Slice *s, u32 low, u32 high, u32 tail) {
    u32 after = state_of(e, tail);
    Mask first = first_bytes(e, after);
    e->hits.n = 0;
    if (e->weigh) { /* inside the loop: an item may be open, and all that are still due */
        u64 cost = (u64)dearest_of(e, s) + (u64)low * node_cost(e, s->item) + stack_cost(e, tail);
        if (cost > e->worst) e->worst = cost < NEVER ? (u32)cost : NEVER;
    }
    for (u32 w = 0; w < 4; w++)
        for (u64 bits = first.w[w]; bits; bits &= bits - 1) {
            u32 byte = w * 64 + (u32)__builtin_ctzll(bits), next = step(e, after, byte);
            if (next == DEAD || s->exit_end[byte] == s->exit_end[byte + 1]) continue;
            if (!s->merged[byte]) merge_exits(e, s, byte);
            if (s->remainders[byte]) walk_remainders(e, s->remainders[byte], next, low, high);
            else walk_exits(e, s, byte, next, low, high);
        }
}

/* The record of the loop with `low` to `high` items left before `tail`. */
u32 slice_record(Engine *e, Slice *s, u32 low, u32 high, u32 tail) {
    slice_hits(e, s, low, high, tail);
    return finish_record(e, row_within(e, s, high));
}

/* The record of the tokens inside a loop but those in `hits`; of the other tokens each is tried. */
u32 try_outside(Engine *e, Slice *s, u32 state) {
    if (!s->outside) build_outside(e, s);
    u32 base = row_within(e, s, s->max_count);
    walk_remainders(e, s->outside, state, 0, NONE);
    return finish_record(e, base);
}

/* The record of a state that can stay in the loop for any number of items. */
u32 outside_record(Engine *e, Slice *s, u32 state) {
    u32 kernel = e->states.p[state].kernel;
    e->hits.n = 0;
    for (u32 i = 0; e->weigh && i < tail_count(e, kernel); i++) {
        u32 cost = stack_cost(e, tail_at(e, kernel, i)) + dearest_of(e, s);
        if (cost > e->worst) e->worst = cost;
    }
    return try_outside(e, s, state);
}
