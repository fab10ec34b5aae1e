/* Masks of states that go on whatever the characters, as in a string that only has to have some word
   somewhere: every token of plain characters is allowed, or nearly every one.

   State and loop of plain characters are followed side by side from here on, a pair at a time, and of
   each pair it is noted how many bytes at least lead to one that the loop reads and the state does not.
   Branches of the trie that are not so deep need no walk. A mark that the state does not read, such as a
   colon, is no such byte: branches with it are walked. So a mask is the loop's row but for the few
   tokens that are deep enough, and what leaves the loop is tried token by token. */
#include "engine.h"
#include <string.h>

enum { MAX_PAIRS = 96, MAX_PLAIN = 64, MORE_PAIRS = 24, MAX_EDGES = 12 * MAX_PAIRS, NUM_PLACES = 256, MAX_ITEM_CLASSES = 64,
       MAX_MADE = 64, NEAR = 3, FAR = 0xFFFF, DEATHS_PART = 14, FEW_DEATHS = 1000 };

typedef struct { u32 state, item, bad; } Pair; /* bad: bytes to the next difference at least */
typedef struct { u8 from, to; } Edge;

typedef struct {
    Pair pairs[MAX_PAIRS];
    Edge edges[MAX_EDGES];
    u8 places[NUM_PLACES];                     /* by hash: index of a pair, + 1 */
    u32 n, num_edges, most_states;
    u64 marks;                                 /* groups of the marks that are not followed */
} Pairs;

/* Where a pair is, or the free place for it. */
static u32 place_of(const Pairs *p, u32 state, u32 item) {
    u32 i = mix(state, item) % NUM_PLACES;
    for (; p->places[i]; i = (i + 1) % NUM_PLACES) {
        const Pair *here = &p->pairs[p->places[i] - 1];
        if (here->state == state && here->item == item) break;
    }
    return i;
}

/* One byte more of the loop: DEAD where it is left, its start where an item is whole. */
static u32 step_loop(Engine *e, const Slice *s, u32 item, u32 byte) {
    u32 next = step(e, item, byte);
    if (next == DEAD) return DEAD;
    if (!(e->states.p[next].flags & S_CLOSED)) close_state(e, next);
    return e->states.p[next].flags & S_ENDS ? s->start : next;
}

/* The pair one byte behind another; 0 if there is no room for `most` of them. */
static int add_pair(Pairs *p, u32 from, u32 state, u32 item, u32 most) {
    u32 place = place_of(p, state, item);
    if (p->num_edges == MAX_EDGES || (!p->places[place] && p->n == most)) return 0;
    if (!p->places[place]) {
        p->pairs[p->n++] = (Pair){state, item, FAR};
        p->places[place] = (u8)p->n;
    }
    p->edges[p->num_edges++] = (Edge){(u8)from, (u8)(p->places[place] - 1)};
    return 1;
}

/* The pairs one byte behind another: by its marks, or by the other bytes. 0 if there is no room. */
static int follow(Engine *e, const Slice *s, Pairs *p, u32 from, int by_marks, u32 most) {
    if (e->states.n > p->most_states) return 0;
    Pair here = p->pairs[from];
    u64 seen[256] = {0}; /* by the class of a byte in the state: those in the item */
    step(e, here.state, 0), step(e, here.item, 0); /* closes both, so that there are classes */
    if (e->states.p[here.item].num_classes > MAX_ITEM_CLASSES) return 0;
    for (u32 w = 0; w < 4; w++)
        for (u64 bits = e->trie.usable.w[w]; bits; bits &= bits - 1) {
            u32 byte = w * 64 + (u32)__builtin_ctzll(bits), group = e->trie.group[byte];
            int is_mark = byte != ' ' && group < NUM_MARKS;
            if (is_mark != by_marks || p->marks >> group & 1) continue;
            u8 class = e->maps.p[(size_t)e->states.p[here.state].map * 256 + byte];
            u64 inside = 1ull << e->maps.p[(size_t)e->states.p[here.item].map * 256 + byte];
            if (seen[class] & inside) continue;
            u32 item = step_loop(e, s, here.item, byte), state = item == DEAD ? DEAD : step(e, here.state, byte);
            if (item != DEAD && state == DEAD) { /* each byte of its class by itself */
                if (is_mark) p->marks |= 1ull << group;
                else p->pairs[from].bad = 1;
                continue;
            }
            seen[class] |= inside;
            if (item != DEAD && !add_pair(p, from, state, item, most)) return 0;
        }
    return 1;
}

static int follow_from(Engine *e, const Slice *s, Pairs *p, u32 first, u32 most) {
    for (u32 i = first; i < p->n; i++)
        if (!follow(e, s, p, i, 0, most) || !follow(e, s, p, i, 1, most)) return 0;
    return 1;
}

/* Follow marks as well, or none of them where that leads to many more pairs. */
static void add_marks(Engine *e, const Slice *s, Pairs *p) {
    u32 n = p->n, num_edges = p->num_edges, most = n + MORE_PAIRS < MAX_PAIRS ? n + MORE_PAIRS : MAX_PAIRS, i = 0;
    while (i < n && follow(e, s, p, i, 1, most)) i++;
    if (i == n && follow_from(e, s, p, n, most)) return;
    p->n = n;
    p->num_edges = num_edges;
    p->marks = (1ull << NUM_MARKS) - 1 - (1ull << e->trie.group[' ']);
    memset(p->places, 0, sizeof p->places);
    for (i = 0; i < n; i++) p->places[place_of(p, p->pairs[i].state, p->pairs[i].item)] = (u8)(i + 1);
}

/* Follow a state and a loop; returns how many bytes are sure to pass without a difference. */
static u32 explore(Engine *e, const Slice *s, u32 state, Pairs *p) {
    memset(p->places, 0, sizeof p->places);
    p->num_edges = 0;
    p->most_states = e->states.n + MAX_MADE;
    p->marks = 0;
    p->n = 1;
    p->pairs[0] = (Pair){state, s->start, FAR};
    p->places[place_of(p, state, s->start)] = 1;
    u32 i = 0;
    while (i < p->n && follow(e, s, p, i, 0, MAX_PLAIN)) {
        if (i == 0 && p->pairs[0].bad == 1) return 1;
        i++;
    }
    int is_whole = i == p->n;
    for (; i < p->n; i++) p->pairs[i].bad = 0; /* nothing is known of these */
    if (is_whole) add_marks(e, s, p);
    else p->marks = (1ull << NUM_MARKS) - 1 - (1ull << e->trie.group[' ']);
    for (int changed = 1; changed;) {
        changed = 0;
        for (u32 k = p->num_edges; k-- > 0;) {
            u32 there = p->pairs[p->edges[k].to].bad + 1;
            if (there > FAR || there >= p->pairs[p->edges[k].from].bad) continue;
            p->pairs[p->edges[k].from].bad = there;
            changed = 1;
        }
    }
    return p->pairs[0].bad;
}

/* Collect in `hits` the tokens that the loop reads and the state does not; 0 when too many nodes had to
   be visited. */
static int walk_deaths(Engine *e, const Slice *s, const Pairs *p, u32 state) {
    const Trie *t = &e->trie;
    u32 visited = 0, most = t->num_nodes / DEATHS_PART + FEW_DEATHS; /* more, and a walk is as good */
    u32 depth = 0;
    RESERVE(e, e->levels, t->max_depth + 2);
    e->levels.p[0] = (Level){0, t->nodes[1].kids, state, s->start};
    while (depth != NONE) {
        Level *level = &e->levels.p[depth];
        if (level->kid == level->end) {
            depth--;
            continue;
        }
        u32 kid = level->kid++, byte = t->kids.byte[kid], here = level->state;
        u32 item = step_loop(e, s, level->other, byte);
        if (++visited > most) return 0;
        if (item == DEAD) continue;
        u32 i = t->kids.node[kid], next = here == DEAD ? DEAD : step(e, here, byte);
        if (next == DEAD) TOKENS_AT(t, i, token) PUSH(e, e->hits, token);
        u32 place = place_of(p, next, item), height = t->nodes[i].height;
        int passes = next != DEAD && p->places[place] && height < p->pairs[p->places[place] - 1].bad;
        if (passes && !(t->nodes[i].groups & p->marks)) continue;
        e->levels.p[++depth] = (Level){t->nodes[i].kids, t->nodes[i + 1].kids, next, item};
    }
    e->steps += visited;
    return 1;
}

/* ---- plain characters ----------------------------------------------------------------------------- */

static u32 byte_range(Engine *e, u32 from, u32 to) {
    Mask m = {{0}};
    for (u32 byte = from; byte <= to; byte++)
        if (byte != '"' && byte != '\\') m.w[byte >> 6] |= 1ull << (byte & 63);
    return make_set(e, &m);
}

/* A character in UTF-8 that neither ends nor escapes in a string, no control character and neither of
   U+2028 and U+2029, which end a line: what most patterns take for any character. */
static u32 plain_character(Engine *e) {
    static const struct { u8 lead, to, second, last, third, end, more; } forms[] = {
        {0xC2, 0xDF, 0x80, 0xBF, 0, 0, 0},       {0xE0, 0xE0, 0xA0, 0xBF, 0x80, 0xBF, 0}, {0xE1, 0xE1, 0x80, 0xBF, 0x80, 0xBF, 0},
        {0xE2, 0xE2, 0x80, 0x80, 0x80, 0xA7, 0}, {0xE2, 0xE2, 0x80, 0x80, 0xAA, 0xBF, 0}, {0xE2, 0xE2, 0x81, 0xBF, 0x80, 0xBF, 0},
        {0xE3, 0xEC, 0x80, 0xBF, 0x80, 0xBF, 0}, {0xED, 0xED, 0x80, 0x9F, 0x80, 0xBF, 0}, {0xEE, 0xEF, 0x80, 0xBF, 0x80, 0xBF, 0},
        {0xF0, 0xF0, 0x90, 0xBF, 0x80, 0xBF, 1}, {0xF1, 0xF3, 0x80, 0xBF, 0x80, 0xBF, 1}, {0xF4, 0xF4, 0x80, 0x8F, 0x80, 0xBF, 1},
    };
    enum { NUM_FORMS = sizeof forms / sizeof *forms };
    u32 ways[NUM_FORMS + 1] = {byte_range(e, 0x20, 0x7F)};
    for (u32 i = 0; i < NUM_FORMS; i++) {
        u32 rest = forms[i].more ? byte_range(e, 0x80, 0xBF) : EPS;
        if (forms[i].third) rest = make_cat(e, byte_range(e, forms[i].third, forms[i].end), rest);
        rest = make_cat(e, byte_range(e, forms[i].second, forms[i].last), rest);
        ways[i + 1] = make_cat(e, byte_range(e, forms[i].lead, forms[i].to), rest);
    }
    return make_alt(e, ways, NUM_FORMS + 1);
}

/* The record of a state that nearly every text of plain characters can go on from; NONE for any other,
   and where completions are to be weighed, as those of the pairs would have to be, too. */
u32 closure_record(Engine *e, u32 state) {
    Pairs p;
    if (e->weigh || e->states.p[state].flags & S_ENDED) return NONE;
    if (e->plain == EMPTY) e->plain = plain_character(e);
    Slice *s = slice_of(e, e->plain);
    e->hits.n = 0;
    if (s && explore(e, s, state, &p) >= NEAR && walk_deaths(e, s, &p, state)) return try_outside(e, s, state);
    e->states.p[state].flags |= S_ENDED;
    return NONE;
}
