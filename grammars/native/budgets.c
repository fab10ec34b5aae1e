/* What a budget of tokens leaves of a mask: the tokens after which a text can still end within it.

   The dearest completion after any allowed token tells whether a budget forbids anything: in bytes, a
   bound that a mask's own way finds (masks.c), and where that does not do, in tokens, once a walk has
   found them. In that walk a branch whose bytes all lead down one lane of states, as letters do inside a
   string, is looked at once for each length, not once for each token. What takes too much work to tell of
   is left out of a mask: a text would have to fail for it, where it may as well go on in another way. */
#include "walks.h"

enum { MAX_LANE = 254, LOOK_FOR_LANE = 16, NO_CLASS = 256, LITTLE_WORK = 50000 };

/* Where the bytes lead that most of them do, and the groups of which every byte leads there. */
static Lane find_lane(Engine *e, u32 state) {
    u32 sizes[NO_CLASS + 1] = {0}, best = NO_CLASS, next = DEAD;
    u8 byte_of[NO_CLASS];
    if (!(e->states.p[state].flags & S_CLOSED)) close_state(e, state);
    for (u32 byte = 0; byte < 256; byte++) {
        u8 class = e->maps.p[(size_t)e->states.p[state].map * 256 + byte];
        byte_of[class] = (u8)byte;
        sizes[class]++;
    }
    for (u32 class = 0; class < NO_CLASS; class++) {
        u32 after = sizes[class] > sizes[best] ? step(e, state, byte_of[class]) : DEAD;
        if (after == DEAD) continue;
        best = class;
        next = after;
    }
    return (Lane){next == DEAD ? 0 : groups_to(e, state, next), next};
}

static Lane lane_of(Engine *e, u32 state) {
    if (!e->states.p[state].lane) {
        Lane lane = find_lane(e, state);
        PUSH(e, e->lanes, lane);
        e->states.p[state].lane = e->lanes.n;
    }
    return e->lanes.p[e->states.p[state].lane - 1];
}

/* Whether a walk was in a state so often that its lane is worth looking for. */
static int is_lane(const Engine *e, Visits *visits, u32 state) {
    u32 i = state % NUM_LOOPS;
    if (e->states.p[state].lane) return 1;
    if (visits->state[i] != state) {
        visits->state[i] = state;
        visits->n[i] = 0;
    }
    return ++visits->n[i] >= LOOK_FOR_LANE;
}

/* most: tokens left after an allowed one; at: where a walk is in the trie. */
typedef struct { u32 *row, budget, most, removed, at; } Left;

/* The tokens that complete a state; bytes where these tell that they are too many. */
static u32 tokens_left(Engine *e, Left *left, u32 state) {
    u32 cost = state_cost(e, state);
    u32 tokens = cost > (u64)left->budget * e->trie.max_depth ? cost : tokens_of(e, state);
    if (tokens > left->most) left->most = tokens;
    return tokens;
}

static void strike(Left *left, u32 token) {
    left->row[token >> 5] &= ~(1u << (token & 31));
    left->removed++;
}

/* Strike the tokens of nodes of the trie. */
static void strike_nodes(const Trie *t, Left *left, u32 node, u32 end) {
    for (u32 i = t->nodes[node].first; i < t->nodes[end].first; i++) strike(left, t->order[i]);
}

/* Strike what is too long of a branch, if all of it leads down the lanes from the state above it. */
static int strike_lanes(Engine *e, Left *left, u32 state, u32 node) {
    const Trie *t = &e->trie;
    u32 depth = t->nodes[node].depth, height = t->nodes[node].height + 1u;
    u8 is_long[MAX_LANE + 1]; /* by length of a token */
    int any = 0;
    if (depth + height > MAX_LANE) return 0; /* no length is known above that */
    for (u32 i = 0; i < height; i++) {
        Lane lane = lane_of(e, state);
        if (t->nodes[node].groups & ~lane.groups) return 0;
        state = lane.next;
        is_long[depth + i] = tokens_left(e, left, state) >= left->budget;
        any |= is_long[depth + i];
    }
    if (!any) return 1;
    for (u32 i = t->nodes[node].first; i < t->nodes[node + t->nodes[node].size].first; i++)
        if (is_long[t->lengths[i]]) strike(left, t->order[i]);
    return 1;
}

static void strike_walk(Engine *e, Left *left, u32 state) {
    const Trie *t = &e->trie;
    Visits visits = {{DEAD}, {0}, {0}};
    RESERVE(e, e->path, t->max_depth + 2);
    e->path.p[0] = state;
    for (u32 i = left->at; i < t->num_nodes;) {
        TrieNode here = t->nodes[i];
        left->at = i;
        u32 above = e->path.p[here.depth - 1], next = step(e, above, here.byte);
        e->steps++;
        if (next == DEAD || (is_lane(e, &visits, above) && strike_lanes(e, left, above, i))) {
            i += here.size;
            continue;
        }
        if (here.token >= 0 && tokens_left(e, left, next) >= left->budget)
            TOKENS_AT(t, i, token) strike(left, token);
        e->path.p[here.depth] = next;
        i++;
    }
}

/* Go on with a walk; returns the fault that it stopped at. */
static int walk_on(Engine *e, Left *left, u32 state) {
    jmp_buf here, *before = e->guard;
    u32 depth = e->depth, borrowed = e->borrowed.n;
    int fault = setjmp(here);
    if (!fault) {
        e->guard = &here;
        strike_walk(e, left, state);
    } else {
        e->depth = depth;
        give_back_from(e, borrowed);
        end_search(e, -1);
    }
    e->guard = before;
    return fault;
}

/* Walk, leaving out what takes too much work to tell of; returns whether there was any. */
static int walk_around(Engine *e, Left *left, u32 state) {
    const Trie *t = &e->trie;
    u64 work = e->fuel / 4;
    int fault, any = 0;
    while ((fault = walk_on(e, left, state))) {
        if (fault != TOO_SLOW && fault != UNDECIDED) fail(e, fault);
        any = 1;
        u32 end = work < LITTLE_WORK ? t->num_nodes : left->at + t->nodes[left->at].size;
        strike_nodes(t, left, left->at, end);
        left->at = end;
        e->fuel = work;
        work /= 2;
    }
    return any;
}

/* Have a token allowed that a shortest completion begins with, if that is within the budget. */
static void allow_shortest(Engine *e, Left *left, u32 state) {
    u32 token, least = tokens_of(e, state);
    if (!least || least > left->budget) return;
    if (spell_shortest(e, state, &token, 1)) left->row[token >> 5] |= 1u << (token & 31);
}

/* Take from a state's mask what leaves `budget` tokens or more to complete; returns how many. */
u32 restrict_mask(Engine *e, u32 state, u32 *row, u32 budget) {
    if (budget > NEVER) budget = NEVER; /* what cannot be spelled is in no budget */
    u32 most = e->states.p[state].most;
    if (most && most - 1 < budget) return 0;
    if (budget && e->trie.all_bytes && worst_cost(e, state) < budget) return 0;
    Left left = {row, budget, 0, 0, 1};
    if (walk_around(e, &left, state)) allow_shortest(e, &left, state);
    else e->states.p[state].most = left.most + 1;
    return left.removed;
}
