/* Masks of text that is none of some words, such as the name of a member that is none of those listed.

   A text in a loop goes on as without the complement of the words: there are ever more items, and words
   end. Only where it may end is one missing that is a word. So the mask is that of the loop before the same
   tail, but for the tokens that lead through a whole word and into the tail, and these are found word by
   word, without a state for each of their beginnings. */
#include "walks.h"
#include <string.h>

enum { MAX_ALIKE = 16 }; /* alternatives within a complement */

/* Whether a node is a few words that nothing follows. */
static int is_words(const Engine *e, u32 node, int within) {
    Node n = e->nodes.p[node];
    switch (n.kind) {
    case K_EPS:
    case K_LIT: return 1;
    case K_WORDS: return e->tables.p[n.a].after == NONE;
    case K_ALT:
        for (u32 i = 0; i < n.b; i++)
            if (within || n.b > MAX_ALIKE || !is_words(e, e->lists.p[n.a + i], 1)) return 0;
        return 1;
    default: return 0;
    }
}

typedef struct { const Slice *loop; u32 low, tail; } Text; /* items, at least so many; the state behind them */

/* Whether a text may end behind some bytes. */
static int may_end(Engine *e, const Text *t, Span bytes) {
    u32 state = t->loop->start, count = 0;
    for (u32 i = 0; i < bytes.length; i++) {
        state = step(e, state, e->pool.p[bytes.offset + i]);
        if (state == DEAD) return 0;
        close_if_open(e, state);
        if (!(e->states.p[state].flags & S_ENDS)) continue;
        state = t->loop->start;
        count++;
    }
    return state == t->loop->start && count >= t->low;
}

/* The tokens through one word and into the tail. `path`: the trie nodes behind the first `known` of its bytes;
   returns of how many there are some. */
static u32 strike_word(Engine *e, const Text *t, Span word, u32 known) {
    const Trie *trie = &e->trie;
    u32 *path = e->path.p;
    for (; known < word.length; known++) {
        const TrieNode *n = &trie->nodes[path[known]];
        u32 kid = kid_with(&trie->kids, n->kids, n[1].kids, e->pool.p[word.offset + known]);
        if (!kid) return known;
        path[known + 1] = kid;
    }
    u32 node = path[known];
    if (trie->nodes[node].size > 1 && may_end(e, t, word)) walk(e, t->tail, node, ~0ull);
    return known;
}

static void strike_table(Engine *e, const Text *t, Node n) {
    u32 first = e->tables.p[n.a].first, found = 0;
    Span last = {0, 0};
    for (u32 i = n.b; i < n.c; i++) {
        Span word = e->words.p[first + i];
        word = (Span){word.offset + n.d, word.length - n.d};
        u32 most = word.length < last.length ? word.length : last.length, known = 0;
        while (known < most && known <= found && e->pool.p[word.offset + known] == e->pool.p[last.offset + known]) known++;
        last = word;
        if (known <= found) found = strike_word(e, t, word, known);
    }
}

static void strike_words(Engine *e, const Text *t, u32 node) {
    Node n = e->nodes.p[node];
    if (n.kind == K_WORDS) strike_table(e, t, n);
    else if (n.kind != K_ALT) strike_word(e, t, (Span){n.a, n.kind == K_LIT ? n.b : 0}, 0);
    for (u32 i = 0; n.kind == K_ALT && i < n.b; i++) strike_words(e, t, e->lists.p[n.a + i]);
}

/* The loop without bound of an intersection in which the other parts are complements of words, if it was
   sliced and what follows begins otherwise; else EMPTY. */
static u32 loop_of(Engine *e, Node both, u32 tail) {
    u32 loop = EMPTY;
    for (u32 i = 0; i < both.b; i++) {
        u32 part = e->lists.p[both.a + i];
        Node n = e->nodes.p[part];
        if (n.kind == K_NOT && is_words(e, n.a, 0)) continue;
        if (n.kind != K_REP || n.c != NONE || loop != EMPTY || !e->nodes.p[n.a].slice) return EMPTY;
        loop = part;
    }
    return loop != EMPTY && usable_slice(e, e->nodes.p[loop], tail) ? loop : EMPTY;
}

/* The record of a state that reads items of a loop, but no word of some, before a tail; NONE for any other,
   and where completions are to be weighed. */
u32 others_record(Engine *e, Node both, u32 tail) {
    u32 item_loop = e->weigh ? EMPTY : loop_of(e, both, tail);
    if (item_loop == EMPTY) return NONE;
    Node loop = e->nodes.p[item_loop];
    u32 known = record_unasked(e, state_of(e, push(e, item_loop, tail)));
    if (known == NONE) return NONE;
    Text text = {slice_of(e, loop.a), loop.b, state_of(e, tail)};
    e->hits.n = 0;
    RESERVE(e, e->path, e->trie.max_depth + 2);
    e->path.p[0] = 0;
    for (u32 i = 0; i < both.b; i++) {
        Node part = e->nodes.p[e->lists.p[both.a + i]];
        if (part.kind == K_NOT) strike_words(e, &text, part.a);
    }
    e->hits.n = sort_unique(e->hits.p, e->hits.n); /* a word may be in two of them */
    return add_difference(e, known);
}
