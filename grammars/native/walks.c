/* Walks through the trie of tokens, with a state by its side.

   A walk goes from a node to those of its kids that the state leads on to. Their bytes lie together, apart
   from the nodes, so that what a state does not read costs a look at a byte, and no node is fetched. */
#include "walks.h"
#include <string.h>

enum { MAX_MADE = 100 };

/* Note what a completion from a state costs, if that is asked for. */
void weigh(Engine *e, u32 state) {
    if (!e->weigh || state == DEAD) return;
    u32 cost = state_cost(e, state);
    if (cost > e->worst) e->worst = cost;
}

void add_hits(Engine *e, u32 node, u32 state) {
    if (e->trie.nodes[node].token < 0) return;
    TOKENS_AT(&e->trie, node, token) PUSH(e, e->hits, token);
    weigh(e, state);
}

/* All tokens of a branch. */
static void add_branch(Engine *e, u32 node, u32 state) {
    const Trie *t = &e->trie;
    u32 first = t->nodes[node].first, n = t->nodes[node + t->nodes[node].size].first - first;
    if (!n) return;
    RESERVE(e, e->hits, n);
    memcpy(e->hits.p + e->hits.n, t->order + first, n * sizeof *t->order);
    e->hits.n += n;
    weigh(e, state);
}

/* The tokens of a branch that are no longer than so many bytes. */
static void add_short(Engine *e, u32 node, u32 length) {
    const Trie *t = &e->trie;
    u32 first = t->nodes[node].first, end = t->nodes[node + t->nodes[node].size].first;
    RESERVE(e, e->hits, end - first);
    u32 *hits = e->hits.p + e->hits.n, n = 0;
    for (u32 i = first; i < end; i++) {
        hits[n] = t->order[i];
        n += t->lengths[i] <= length;
    }
    e->hits.n += n;
}

/* The kids from one on that two closed states of a level may lead on to differently. */
static inline u32 next_differing(const Engine *e, const Level *level, const u8 *bytes) {
    const State *a = &e->states.p[level->state], *b = &e->states.p[level->other];
    const u8 *map_a = e->maps.p + (size_t)a->map * 256, *map_b = e->maps.p + (size_t)b->map * 256;
    const u32 *next_a = e->nexts.p + a->next, *next_b = e->nexts.p + b->next;
    u32 kid = level->kid;
    for (; kid < level->end; kid++) {
        u32 next = next_a[map_a[bytes[kid]]];
        if (next == NONE || next != next_b[map_b[bytes[kid]]]) break;
    }
    return kid;
}

/* One level down, to the kids of a node. */
static inline void descend(Engine *e, u32 depth, u32 node, u32 state, u32 other) {
    const TrieNode *n = &e->trie.nodes[node];
    close_if_open(e, state);
    close_if_open(e, other);
    e->levels.p[depth] = (Level){n->kids, n[1].kids, state, other};
}

/* Follow the literals that an open state begins with, so that no states are made within them: from a node
   on, which becomes the one behind them, 0 where no token goes on there. Returns the state there. */
static u32 read_literals(Engine *e, u32 *node, u32 state) {
    const Trie *t = &e->trie;
    for (Span text = literal_of(e, state); text.length; text = literal_of(e, state)) {
        for (u32 i = 0; i < text.length; i++) {
            const TrieNode *n = &t->nodes[*node];
            *node = kid_with(&t->kids, n->kids, n[1].kids, e->pool.p[text.offset + i]);
            if (!*node) return DEAD;
            TOKENS_AT(t, *node, token) PUSH(e, e->hits, token);
        }
        state = behind_literal(e, state);
    }
    return state;
}

/* The state behind some bytes, DEAD where they do not fit. No states are made within literals but where the
   bytes end: a long one would fill the memory of a step. */
u32 follow_bytes(Engine *e, u32 state, const u8 *data, u32 length) {
    for (u32 i = 0; i < length && state != DEAD;) {
        Span text = literal_of(e, state);
        if (!text.length) {
            state = step(e, state, data[i++]);
            continue;
        }
        u32 left = length - i, n = text.length < left ? text.length : left;
        if (memcmp(e->pool.p + text.offset, data + i, n)) return DEAD;
        state = n == text.length ? behind_literal(e, state) : within_literal(e, state, n);
        i += n;
    }
    return state;
}

/* Collect in `hits` the tokens that go on from trie node `node`, reached in `state`. 0 when more
   than `limit` nodes were visited, or states made on such a way. Where completions are weighed, only what
   stays in a state is passed over: what costs the same. */
int walk(Engine *e, u32 state, u32 node, u64 limit) {
    const Trie *t = &e->trie;
    u32 visited = 0, most = limit == ~0ull ? NONE : e->states.n + MAX_MADE, depth = 0;
    Loops loops = {{DEAD}, {0}, {0}, {0}};
    Visits visits = {{DEAD}, {0}, {0}};
    RESERVE(e, e->levels, t->max_depth + 2);
    if (!e->weigh) {
        state = read_literals(e, &node, state);
        if (state == DEAD) return 1;
    }
    descend(e, 0, node, state, state);
    while (depth != NONE) {
        Level *level = &e->levels.p[depth];
        u32 here = level->state, kid = next_kid(e, here, t->kids.byte, level->kid, level->end);
        visited += kid - level->kid + 1;
        if (visited > limit || e->states.n > most) return 0;
        if (kid == level->end) {
            visited--;
            depth--;
            continue;
        }
        level->kid = kid + 1;
        u32 next = step(e, here, t->kids.byte[kid]), i = t->kids.node[kid];
        if (next == DEAD) continue;
        const TrieNode *n = &t->nodes[i];
        int passes_all;
        if (e->weigh) {
            passes_all = next == here && !(n->groups & ~groups_in(e, &loops, next));
        } else {
            Pass pass = pass_of(e, &visits, here, next, 1);
            u32 length = n->depth - 1 + pass.bytes;
            int is_read = !(n->groups & ~pass.groups);
            passes_all = is_read && n->height < pass.bytes;
            if (is_read && !passes_all && pass.stops && length < 255) {
                add_short(e, i, length);
                continue;
            }
        }
        if (passes_all) {
            add_branch(e, i, next);
            continue;
        }
        add_hits(e, i, next);
        if (n->size > 1 && !e->weigh) next = read_literals(e, &i, next);
        if (t->nodes[i].size > 1 && next != DEAD) descend(e, ++depth, i, next, next);
    }
    e->steps += visited;
    return 1;
}

/* The same for two states, collecting tokens on which they differ. A token that both allow costs more
   in the first where less is left of it, as beside a complement, so that it is weighed too. */
int walk_difference(Engine *e, u32 state, u32 other, u64 limit) {
    const Trie *t = &e->trie;
    u32 visited = 0, depth = 0;
    RESERVE(e, e->levels, t->max_depth + 2);
    descend(e, 0, 0, state, other);
    while (depth != NONE) {
        Level *level = &e->levels.p[depth];
        u32 kid = next_differing(e, level, t->kids.byte);
        visited += kid - level->kid + 1;
        if (visited > limit) return 0;
        if (kid == level->end) {
            visited--;
            depth--;
            continue;
        }
        level->kid = kid + 1;
        u32 byte = t->kids.byte[kid], a = step(e, level->state, byte), b = step(e, level->other, byte);
        if (a == b) continue;
        u32 i = t->kids.node[kid];
        if ((a == DEAD) != (b == DEAD)) add_hits(e, i, a);
        else if (t->nodes[i].token >= 0) weigh(e, a);
        if (t->nodes[i].size > 1) descend(e, ++depth, i, a, b);
    }
    e->steps += visited;
    return 1;
}
