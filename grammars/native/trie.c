/* What is known of the trie of tokens once and for all: which bytes are in each of its branches.

   A state that stays what it is for some groups of bytes allows every token of a branch of only
   these, so that a walk need not go through it byte by byte. */
#include "engine.h"
#include <stdlib.h>

/* Bytes that most automata treat alike are one group; there are fewer than 64. */
static u32 group_of(u32 byte) {
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

/* 0 when there is no memory. */
int index_trie(Trie *t, TrieArrays given) {
    u32 num = t->num_nodes, *parent = malloc((num + 1) * sizeof *parent), n = 0;
    for (u32 i = 0; i < num; i++)
        if ((u32)given.depth[i] > t->max_depth) t->max_depth = (u32)given.depth[i];
    u32 *path = malloc((t->max_depth + 2) * sizeof *path);
    t->nodes = calloc(num + 1, sizeof *t->nodes);
    t->order = calloc(t->num_tokens + 1, sizeof *t->order);
    int made = parent && path && t->nodes && t->order;
    for (u32 i = 0; made && i < num; i++) {
        u32 depth = (u32)given.depth[i];
        u64 group = i ? 1ull << group_of(given.byte[i]) : 0;
        path[depth] = i;
        parent[i] = depth ? path[depth - 1] : 0;
        t->nodes[i] = (TrieNode){group, (u32)given.size[i], depth, n, given.token[i], given.byte[i]};
        for (i32 id = given.token[i]; id >= 0; id = given.same[id]) t->order[n++] = (u32)id;
    }
    if (made) t->nodes[num].first = n;
    for (u32 i = num; made && i-- > 1;) t->nodes[parent[i]].groups |= t->nodes[i].groups;
    free(parent);
    free(path);
    return made;
}

void drop_trie(Trie *t) {
    free(t->nodes);
    free(t->order);
}

/* The groups of which every byte leads from a state to `next`. */
u64 groups_to(Engine *e, u32 state, u32 next) {
    u64 some = 0, others = 0;
    for (u32 byte = 0; byte < 256; byte++)
        if (step(e, state, byte) == next) some |= 1ull << group_of(byte);
        else others |= 1ull << group_of(byte);
    return some & ~others;
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
