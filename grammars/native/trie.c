/* What is known of the trie of tokens once and for all: which bytes are in each of its branches.

   A state that stays what it is for some groups of bytes allows every token of a branch of only
   these, so that a walk need not go through it byte by byte. */
#include "walks.h"
#include <stdlib.h>
#include <string.h>

enum { CACHE_LINE = 64 };

/* Bytes that most automata treat alike are one group; there are fewer than 64. The first NUM_MARKS are
   of one byte. */
static u32 find_group(u32 byte) {
    static const u8 control[] = {'\t', '\n', '\r'};
    if (byte >= '0' && byte <= '9') return 33;
    if (byte >= 'a' && byte <= 'z') return byte <= 'f' ? 34 : 35;
    if (byte >= 'A' && byte <= 'Z') return byte <= 'F' ? 36 : 37;
    for (u32 i = 0; i < sizeof control; i++)
        if (byte == control[i]) return 38 + i;
    if (byte < 0x20 || byte == 0x7F) return 41;
    if (byte < 0x80) { /* each mark by itself */
        u32 passed = (byte > '9' ? 10 : 0) + (byte > 'Z' ? 26 : 0) + (byte > 'z' ? 26 : 0);
        return byte - 0x20 - passed;
    }
    if (byte < 0xC0) return 42;
    if (byte < 0xC2 || byte > 0xF4) return 43;
    if (byte < 0xE0) return 44;
    if (byte < 0xF0) return byte == 0xE0 ? 45 : byte == 0xED ? 46 : 47;
    return byte == 0xF0 ? 48 : byte == 0xF4 ? 49 : 50;
}

/* The kids of `n` nodes that stand in order. `first` gets where those of each begin, [n + 1]; `path` has room
   for a node of each depth. */
void index_kids(const u8 *byte, const u32 *depth, u32 n, u32 *path, u32 *first, Kids kids) {
    memset(first, 0, (n + 1) * sizeof *first);
    for (u32 i = 0; i < n; i++) {
        path[depth[i]] = i;
        if (i) first[path[depth[i] - 1] + 1]++;
    }
    for (u32 i = 0; i < n; i++) first[i + 1] += first[i];
    for (u32 i = 0; i < n; i++) {
        path[depth[i]] = i;
        if (!i) continue;
        u32 place = first[path[depth[i] - 1]]++; /* so that each ends as where the next began */
        kids.byte[place] = byte[i];
        kids.node[place] = i;
    }
    for (u32 i = n; i > 0; i--) first[i] = first[i - 1];
    first[0] = 0;
}

/* 0 when there is no memory. */
int index_trie(Trie *t, TrieArrays given) {
    u32 num = t->num_nodes, *parent = malloc((num + 1) * sizeof *parent), n = 0;
    for (u32 i = 0; i < num; i++)
        if ((u32)given.depth[i] > t->max_depth) t->max_depth = (u32)given.depth[i];
    u32 *path = malloc((t->max_depth + 2) * sizeof *path);
    u32 *first = malloc((num + 1) * sizeof *first);
    t->nodes = aligned_alloc(CACHE_LINE, ((num + 1) * sizeof *t->nodes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE);
    t->kids = (Kids){malloc(num), malloc(num * sizeof *t->kids.node)};
    t->order = calloc(t->num_tokens + 1, sizeof *t->order);
    t->lengths = calloc(t->num_tokens + 1, sizeof *t->lengths);
    int made = parent && path && first && t->nodes && t->order && t->lengths && t->kids.byte && t->kids.node;
    if (made) index_kids(given.byte, (const u32 *)given.depth, num, path, first, t->kids);
    for (u32 byte = 0; byte < 256; byte++) t->group[byte] = (u8)find_group(byte);
    for (u32 i = 0; made && i < num; i++) {
        u32 depth = (u32)given.depth[i];
        u64 group = i ? 1ull << t->group[given.byte[i]] : 0;
        if (depth == 1) t->below[given.byte[i]] = (u32)given.size[i];
        path[depth] = i;
        parent[i] = depth ? path[depth - 1] : 0;
        t->nodes[i] = (TrieNode){group, (u32)given.size[i], depth, n, first[i], given.token[i], given.byte[i], 0};
        for (i32 id = given.token[i]; id >= 0; id = given.same[id]) {
            t->lengths[n] = (u8)(depth < 255 ? depth : 255);
            t->order[n++] = (u32)id;
        }
    }
    if (made) t->nodes[num] = (TrieNode){.first = n, .kids = first[num]};
    for (u32 i = num; made && i-- > 1;) {
        TrieNode *node = &t->nodes[i], *above = &t->nodes[parent[i]];
        above->groups |= node->groups;
        if (node->height == 255) above->height = 255;
        else if (node->height >= above->height) above->height = (u8)(node->height + 1);
    }
    free(parent);
    free(path);
    free(first);
    return made;
}

void drop_trie(Trie *t) {
    free(t->nodes);
    free(t->order);
    free(t->lengths);
    free(t->kids.byte);
    free(t->kids.node);
}

/* The groups of which every byte leads from a state to `next`. */
u64 groups_to(Engine *e, u32 state, u32 next) {
    u64 some = 0, others = 0;
    for (u32 byte = 0; byte < 256; byte++)
        if (step(e, state, byte) == next) some |= 1ull << e->trie.group[byte];
        else others |= 1ull << e->trie.group[byte];
    return some & ~others;
}

typedef struct { u64 every, some; } Alive; /* groups of which every, or some, byte leads on */

static Alive groups_alive(Engine *e, u32 state) {
    u64 some = 0, others = 0;
    u8 alive[256] = {0}; /* by class: 1 if it is, 2 if not, 0: not known */
    step(e, state, 0); /* closes it, so that there are classes */
    for (u32 byte = 0; byte < 256; byte++) {
        u8 class = e->maps.p[(size_t)e->states.p[state].map * 256 + byte];
        if (!alive[class]) alive[class] = step(e, state, byte) == DEAD ? 2 : 1;
        if (alive[class] == 2) others |= 1ull << e->trie.group[byte];
        else some |= 1ull << e->trie.group[byte];
    }
    return (Alive){~others, some};
}

enum { MAX_PASSED = 24, NEARBY = 3, MAX_LEFT_OUT = 6 };

typedef struct {
    u32 states[MAX_PASSED], depth[MAX_PASSED], n;
    u64 via[MAX_PASSED]; /* the group of the first byte on the way */
    u8 returns;          /* a state was met again, or was one too many */
} Passed;

/* The states behind another, by the bytes of some groups. */
static void pass_on(Engine *e, Passed *p, u32 i, Pass *pass) {
    u8 seen[256] = {0}; /* classes */
    for (u32 byte = 0x20; byte < 0x7F && p->depth[i] + 1 < pass->bytes; byte++) {
        u64 group = 1ull << e->trie.group[byte];
        u8 *met = &seen[e->maps.p[(size_t)e->states.p[p->states[i]].map * 256 + byte]];
        if (!(pass->groups & group) || *met) continue;
        *met = 1;
        u32 next = step(e, p->states[i], byte), k = 0;
        while (k < p->n && p->states[k] != next) k++;
        if (k < p->n && p->depth[k] > p->depth[i]) continue;
        p->returns |= k < p->n || p->n == MAX_PASSED;
        if (k < p->n) continue;
        if (p->n == MAX_PASSED) {
            pass->bytes = p->depth[i] + 1;
        } else {
            p->states[k] = next;
            p->via[k] = i ? p->via[i] : group;
            p->depth[k] = p->depth[i] + 1;
            p->n++;
        }
    }
}

/* Whether nothing of the groups can be read from the states from `i` on, which are all that so many
   bytes lead to. */
static int stops_at(Engine *e, const Passed *p, u32 i, u64 groups) {
    for (; !p->returns && i < p->n; i++)
        if (groups_alive(e, p->states[i]).some & groups) return 0;
    return !p->returns;
}

/* Breadth first over the states behind some groups: what is lost, or a state too many, bounds how many
   bytes may be read. What is lost nearby leaves the group out that leads there, if that is the smaller
   loss, as an escape is: then 0, and it has to be tried again. */
static int try_pass(Engine *e, u32 start, Pass *pass) {
    Passed p = {{start}, {0}, 1, {0}, 0};
    pass->bytes = 255;
    for (u32 i = 0; i < p.n && p.depth[i] < pass->bytes; i++) {
        u64 lost = pass->groups & ~groups_alive(e, p.states[i]).every;
        if (lost && p.depth[i] >= NEARBY) {
            pass->bytes = p.depth[i];
            pass->stops = stops_at(e, &p, i, pass->groups);
            break;
        }
        if (lost & (lost - 1) && i) {
            pass->groups &= ~p.via[i];
            return 0;
        }
        pass->groups &= ~lost;
        pass_on(e, &p, i, pass);
    }
    return 1;
}

static Pass find_pass(Engine *e, u32 start) {
    u64 printed = 0;
    for (u32 byte = 0x20; byte < 0x7F; byte++) /* but what is most often an end, and an escape */
        if (byte != '"' && byte != '\\') printed |= 1ull << e->trie.group[byte];
    Pass pass = {groups_alive(e, start).every & printed, 0, 0};
    for (u32 i = 0; i < MAX_LEFT_OUT && pass.groups; i++)
        if (try_pass(e, start, &pass)) return pass;
    return (Pass){0, 0, 0};
}

static Pass keep_pass(Engine *e, u32 state, Pass pass) {
    PUSH(e, e->passes, pass);
    e->states.p[state].pass = e->passes.n;
    return pass;
}

/* `pass_of` while it is not known: soon for bytes that stay in the state, later for all, which takes as
   long as many nodes; `far`: this walk may have so many. */
Pass look_for_pass(Engine *e, Visits *v, u32 state, u32 next, int far) {
    u32 i = state % NUM_LOOPS;
    if (v->state[i] != state) {
        v->state[i] = state;
        v->n[i] = v->stays[i] = 0;
    }
    if (next == state && ++v->stays[i] == LOOK_FOR_STAY) {
        u64 groups = groups_to(e, state, state);
        if (groups) return keep_pass(e, state, (Pass){groups, 255, 0});
    }
    if (++v->n[i] < LOOK_FOR_PASS || !far) return (Pass){0, 0, 0};
    return keep_pass(e, state, find_pass(e, state));
}

/* `groups_in` while it is not known. */
u64 look_for_groups(Engine *e, Loops *l, u32 state) {
    u32 i = state % NUM_LOOPS;
    if (l->state[i] != state) {
        l->state[i] = state;
        l->stays[i] = 0;
        l->groups[i] = 0;
        l->noted[i] = 0;
    }
    if (++l->stays[i] == LOOK_FOR_LOOP) l->groups[i] = groups_to(e, state, state);
    return l->groups[i];
}
