/* Chains: words in one order, each before a rest of its own, some of which may be left out, as the
   members of an object. See chain.py, whose rules these are; Python is asked only for the parts that
   are not the same in every chain. */
#include "chains.h"
#include <stdlib.h>
#include <string.h>

enum { LONG = 256 }; /* words of a long chain */

/* What a chain of known forms says of itself: each of its words has a value. */
static u32 tell(Engine *e, const Chain *c, u32 what, u32 index) {
    if (what == ASK_OPEN) return 0x5555;
    if (what == ASK_END) return EMPTY;
    return form_value(e, e->lists.p[c->forms + (what == ASK_OTHER ? c->count : index)]);
}

u32 ask(Engine *e, Chain c, u32 what, u32 index) {
    if (c.forms != NONE) return tell(e, &c, what, index);
    i32 answer = e->expand(c.rules, (i32)(index << ASK_BITS | what)); /* may add anything */
    if (answer < 0) fail(e, CALLBACK);
    return (u32)answer;
}

u32 fresh_list(Engine *e, u32 count) {
    u32 at = e->lists.n;
    RESERVE(e, e->lists, count);
    memset(e->lists.p + at, 0xFF, count * sizeof(u32));
    e->lists.n += count;
    return at;
}

void add_chain_words(Engine *e, Chain *c, const u8 *bytes, const u32 *lengths, const u8 *needed) {
    c->words = e->words.n;
    c->parts = fresh_list(e, c->count);
    c->places = fresh_list(e, c->count + 1);
    c->needed = fresh_list(e, c->count);
    for (u32 i = 0; i < c->count; i++) {
        RESERVE(e, e->pool, lengths[i]);
        memcpy(e->pool.p + e->pool.n, bytes, lengths[i]);
        PUSH(e, e->words, ((Span){e->pool.n, lengths[i]}));
        e->pool.n += lengths[i];
        bytes += lengths[i];
        e->lists.p[c->needed + i] = needed[i];
    }
}

/* Returns the first of the chain's rules: what is behind each word, the words from each stride on, and
   what is behind other words. */
u32 add_chain(Engine *e, const u8 *bytes, const u32 *lengths, const u8 *needed, u32 count, u32 others,
              const Marks *marks) {
    Chain c = {.rules = e->rules.n, .count = count, .others = others, .forms = NONE, .marks = *marks};
    add_chain_words(e, &c, bytes, lengths, needed);
    for (u32 i = 0; i < count; i++)
        if (needed[i]) c.closes = i + 1;
    u32 num_rules = count + count / STRIDE + 2;
    RESERVE(e, e->rules, num_rules); /* all or none */
    PUSH(e, e->chains, c);
    for (u32 i = 0; i < num_rules; i++)
        PUSH(e, e->rules, ((Rule){.body = NONE, .cost = NEVER, .checked = 1, .chain = e->chains.n}));
    return c.rules;
}

/* Learn of the words of a stride which have a value at all. */
void open_stride(Engine *e, Chain c, u32 first) {
    u32 bits = ask(e, c, ASK_OPEN, first);
    for (u32 i = first; i < first + STRIDE && i < c.count; i++, bits >>= 2)
        e->lists.p[c.parts + i] = bits & 1 ? OPEN : bits & 2 ? ASKED : EMPTY;
}

static u32 part_of(Engine *e, Chain c, u32 index) {
    if (e->lists.p[c.parts + index] == UNKNOWN) open_stride(e, c, index / STRIDE * STRIDE);
    if (e->lists.p[c.parts + index] == ASKED) {
        u32 part = ask(e, c, ASK_PART, index);
        e->lists.p[c.parts + index] = part;
    }
    return e->lists.p[c.parts + index];
}

static int compare_spans(const Engine *e, Span a, Span b) {
    u32 shorter = a.length < b.length ? a.length : b.length;
    return memcmp(e->pool.p + a.offset, e->pool.p + b.offset, shorter);
}

/* Some words, each before the rule of what is behind it. */
static u32 open_words(Engine *e, Chain c, u32 *indices, u32 n) {
    for (u32 i = 1; i < n; i++) /* few: sorted by insertion */
        for (u32 k = i; k > 0; k--) {
            u32 here = indices[k], before = indices[k - 1];
            if (compare_spans(e, e->words.p[c.words + before], e->words.p[c.words + here]) < 0) break;
            indices[k] = before, indices[k - 1] = here;
        }
    WordTable t = {e->words.n, n, fresh_list(e, n), F_RULES};
    for (u32 i = 0; i < n; i++) {
        Span word = e->words.p[c.words + indices[i]];
        PUSH(e, e->words, word);
        u32 behind = make_rule(e, c.rules + indices[i]);
        e->lists.p[t.after + i] = behind;
    }
    PUSH(e, e->tables, t);
    return make_words(e, e->tables.n - 1, 0, n, 0);
}

/* The words from `place` to the end of its stride, before `later`, unless one is needed. */
static u32 list_words(Engine *e, Chain c, u32 place, u32 later) {
    u32 ways[STRIDE + 2], open[STRIDE], n = 0, num_open = 0;
    u32 stop = place / STRIDE * STRIDE + STRIDE;
    int needed = 0;
    for (u32 i = place; i < stop && i < c.count && !needed; i++) {
        u32 part = part_of(e, c, i);
        if (part == OPEN) open[num_open++] = i;
        else if (part != EMPTY) ways[n++] = part;
        needed = e->lists.p[c.needed + i] != 0;
    }
    spend(e, STRIDE);
    if (num_open) ways[n++] = open_words(e, c, open, num_open);
    if (!needed && later != EMPTY) ways[n++] = later;
    return make_alt(e, ways, n);
}

/* ---- other words, behind all that are listed ---------------------------------------------------- */

typedef struct { const u8 *at; Span span; } Name;

static int compare_names(const void *x, const void *y) {
    const Name *a = x, *b = y;
    u32 n = a->span.length, m = b->span.length;
    int order = memcmp(a->at, b->at, n < m ? n : m);
    return order ? order : (n > m) - (n < m);
}

/* The words, of which there are some, without their quotes, as one node. */
static u32 names_of(Engine *e, Chain c) {
    Name *names = borrow(e, c.count * sizeof *names);
    for (u32 i = 0; i < c.count; i++) {
        Span word = e->words.p[c.words + i], name = {word.offset + 1, word.length - 2};
        names[i] = (Name){e->pool.p + name.offset, name};
    }
    qsort(names, c.count, sizeof *names, compare_names);
    WordTable t = {e->words.n, c.count, NONE, 0};
    for (u32 i = 0; i < c.count; i++) PUSH(e, e->words, names[i].span);
    give_back(e, names);
    PUSH(e, e->tables, t);
    return make_words(e, e->tables.n - 1, 0, c.count, 0);
}

/* A word that is none of the chain's, and what is behind it. Finitely many out of all: there are
   others. */
u32 other_words(Engine *e, Chain c, u32 behind) {
    u32 parts[2] = {c.marks.inside, make_not(e, c.count ? names_of(e, c) : EMPTY)};
    if (c.count && e->nodes.p[c.marks.inside].kind == K_REP) PUSH(e, e->loops, e->nodes.p[c.marks.inside].a);
    u32 others = make_and(e, parts, 2);
    e->nodes.p[others].flags |= F_ALIVE;
    return make_cat(e, c.marks.quote, make_cat(e, others, make_cat(e, c.marks.quote, behind)));
}

/* ---- places ------------------------------------------------------------------------------------- */

static u32 end_of(Engine *e, Chain c) {
    if (!c.others) return ask(e, c, ASK_END, 0);
    return other_words(e, c, make_rule(e, c.rules + c.count + c.count / STRIDE + 1));
}

/* Where the stride of a place ends, or the chain; NONE when a needed word comes before. */
static u32 next_stride(const Engine *e, Chain c, u32 place) {
    u32 stop = place / STRIDE * STRIDE + STRIDE;
    for (u32 i = place; i < stop && i < c.count; i++)
        if (e->lists.p[c.needed + i]) return NONE;
    return stop < c.count ? stop : c.count;
}

/* What may stand at a place: the last stride first, since each asks whether there is a later way. */
u32 chain_place(Engine *e, u32 chain, u32 place) {
    Chain c = e->chains.p[chain];
    u32 last = place, end;
    if (e->lists.p[c.places + place] != UNKNOWN) return e->lists.p[c.places + place];
    while (last < c.count && e->lists.p[c.places + last] == UNKNOWN && (end = next_stride(e, c, last)) != NONE)
        last = end;
    for (;;) {
        u32 node = e->lists.p[c.places + last];
        if (node == UNKNOWN) {
            u32 later = EMPTY, stop = last < c.count ? next_stride(e, c, last) : NONE;
            if (stop == c.count) later = e->lists.p[c.places + stop];
            else if (stop != NONE && e->lists.p[c.places + stop] != EMPTY)
                later = make_rule(e, c.rules + c.count + stop / STRIDE);
            node = last == c.count ? end_of(e, c) : list_words(e, c, last, later);
            e->lists.p[c.places + last] = node;
        }
        if (last == place) return node;
        u32 before = (last - 1) / STRIDE * STRIDE;
        last = before > place ? before : place;
    }
}

/* ---- lists ------------------------------------------------------------------------------------- */

/* Returns the rule of a list. */
u32 add_list(Engine *e, u32 low, u32 high, const Marks *marks) {
    RESERVE(e, e->rules, 1); /* all or none */
    Chain c = {.rules = e->rules.n, .is_list = 1, .low = low, .high = high, .forms = NONE, .marks = *marks};
    PUSH(e, e->chains, c);
    PUSH(e, e->rules, ((Rule){.body = NONE, .cost = NEVER, .checked = 1, .chain = e->chains.n}));
    return e->rules.n - 1;
}

/* Give the forms of the values of a chain, by its first rule, or of a list. */
void set_forms(Engine *e, u32 rule, const u32 *forms, u32 count) {
    u32 at = fresh_list(e, count);
    memcpy(e->lists.p + at, forms, count * sizeof *forms);
    e->chains.p[e->rules.p[rule].chain - 1].forms = at;
}

static u32 whole_list(Engine *e, Chain c) {
    u32 value = c.high ? ask(e, c, ASK_VALUE, 0) : EMPTY, ways[2], n = 0;
    if (!c.low) ways[n++] = c.marks.empty;
    if (value != EMPTY) {
        u32 more = make_cat(e, c.marks.comma, value), high = c.high == NONE ? NONE : c.high - 1;
        more = make_repeat(e, more, c.low ? c.low - 1 : 0, high);
        ways[n++] = make_cat(e, value, make_cat(e, more, c.marks.close));
    }
    return make_cat(e, c.marks.opening, make_alt(e, ways, n));
}

/* The opening and all that follows. */
u32 whole_chain(Engine *e, u32 chain) {
    Chain c = e->chains.p[chain];
    if (c.strands) return whole_braid(e, chain);
    if (c.is_list) return make_rule(e, c.rules);
    u32 ways[2], n = 0, first = chain_place(e, chain, 0);
    if (!c.closes) ways[n++] = c.marks.empty;
    if (first != EMPTY) ways[n++] = first;
    return make_cat(e, c.marks.opening, make_alt(e, ways, n));
}

/* A value, and what follows when `place` words were passed. */
static u32 behind(Engine *e, u32 chain, u32 place, u32 value) {
    Chain c = e->chains.p[chain];
    u32 ways[2], n = 0, more = make_cat(e, c.marks.comma, chain_place(e, chain, place));
    if (place >= c.closes) ways[n++] = c.marks.close;
    if (more != EMPTY) ways[n++] = more;
    return make_cat(e, c.marks.colon, make_cat(e, value, make_alt(e, ways, n)));
}

/* Whether a text may get to a rule of a chain: not behind words without a value, or with a part of
   their own, nor behind other words where there are none. */
int is_in_use(Engine *e, u32 rule) {
    Chain c = e->chains.p[e->rules.p[rule].chain - 1];
    if (c.strands) return 1; /* made when first mentioned */
    u32 index = rule - c.rules, strides = c.count / STRIDE + 1;
    if (index < c.count) return part_of(e, c, index) == OPEN;
    return c.is_list || index < c.count + strides || c.others;
}

/* The body of a rule of a chain. */
u32 chain_body(Engine *e, u32 rule) {
    u32 chain = e->rules.p[rule].chain - 1;
    Chain c = e->chains.p[chain];
    u32 index = rule - c.rules, strides = c.count / STRIDE + 1;
    if (c.strands) return braid_body(e, rule);
    if (c.is_list) return whole_list(e, c);
    if (index < c.count) return behind(e, chain, index + 1, ask(e, c, ASK_VALUE, index));
    if (index < c.count + strides) return chain_place(e, chain, (index - c.count) * STRIDE);
    return behind(e, chain, c.count, ask(e, c, ASK_OTHER, 0));
}

/* ---- long chains ------------------------------------------------------------------------------ */

/* The rules of the words from the nearest to the last that is needed: any text passes these. */
static void words_from_end(Engine *e, Chain c, u32 place, int (*wanted)(const Engine *, u32),
                           u32 (*visit)(Engine *, u32)) {
    while (place < c.closes && !is_in_use(e, c.rules + place)) place++;
    if (place == c.closes || !wanted(e, c.rules + place)) return;
    for (u32 i = c.closes; i-- > place;) {
        spend(e, 1);
        if (is_in_use(e, c.rules + i)) visit(e, c.rules + i);
    }
}

/* The rules of the strides behind a place, up to a word that is needed. */
static void strides_from_end(Engine *e, Chain c, u32 place, int (*wanted)(const Engine *, u32),
                             u32 (*visit)(Engine *, u32)) {
    u32 rules = c.rules + c.count, last = place, next;
    while ((next = next_stride(e, c, last)) != NONE && next < c.count) {
        if (last == place && !wanted(e, rules + next / STRIDE)) return;
        last = next;
    }
    for (; last > place; last -= STRIDE) {
        spend(e, 1);
        visit(e, rules + last / STRIDE);
    }
}

/* Visit the rules that a rule of a long chain leads to, those at its end first, so that none is visited
   within the one before it; unless the nearest is not wanted, as then the others are not either. */
void from_end(Engine *e, u32 rule, int (*wanted)(const Engine *, u32), u32 (*visit)(Engine *, u32)) {
    Chain c = e->chains.p[e->rules.p[rule].chain - 1];
    u32 index = rule - c.rules, strides = c.count / STRIDE + 1;
    if (c.strands || c.is_list || c.count < LONG || index >= c.count + strides) return;
    words_from_end(e, c, index < c.count ? index + 1 : (index - c.count) * STRIDE, wanted, visit);
    if (index >= c.count) strides_from_end(e, c, (index - c.count) * STRIDE, wanted, visit);
}
