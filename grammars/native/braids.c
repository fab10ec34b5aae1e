/* Braids: chains of words that mix, each in its own order, as the members of an object that several
   schemas declare. See chain.py, whose rules these are.

   A rule stands for a place, by how far each strand was passed and what comes there: the value of the
   last word of a strand, or of another word, or what is behind a value, or one more word. Rules are made
   when first mentioned, so that a braid costs what a text visits and not the ways to mix it. */
#include "chains.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_STRANDS = 16 };            /* as of chain.py */
enum { OTHER, AFTER, WORD };      /* what comes, behind the strands */

typedef struct { u32 at[MAX_STRANDS + 1]; } Place; /* the next word of each strand, and what comes */

static u32 hash_place(u32 chain, const Place *p, u32 n) {
    u32 h = mix(0xB4A1D5u, chain);
    for (u32 i = 0; i < n; i++) h = mix(h, p->at[i]);
    return h;
}

/* The node of the rule of a place. */
static u32 rule_of(Engine *e, u32 chain, Place p, u32 what) {
    u32 strands = e->chains.p[chain].strands, n = strands + 1;
    p.at[strands] = what;
    u32 hash = hash_place(chain, &p, n), size = n * (u32)sizeof *p.at;
    PROBE(e->place_table, hash, i) {
        Slot s = *slot_at(&e->place_table, hash, i);
        if (s.hash != hash || e->rules.p[s.id - 1].chain != chain + 1) continue;
        if (!memcmp(e->lists.p + e->rules.p[s.id - 1].place, p.at, size)) return make_rule(e, s.id - 1);
    }
    u32 place = fresh_list(e, n), rule = e->rules.n;
    memcpy(e->lists.p + place, p.at, size);
    PUSH(e, e->rules, ((Rule){.body = NONE, .cost = NEVER, .checked = 1, .chain = chain + 1, .place = place,
                              .has_way = what == strands + WORD}));
    table_add(e, &e->place_table, hash, rule);
    return make_rule(e, rule);
}

static u32 begin_of(const Engine *e, Chain c, u32 strand) { return strand ? e->lists.p[c.ends + strand - 1] : 0; }

static Place first_place(const Engine *e, Chain c) {
    Place p = {{0}};
    for (u32 s = 0; s < c.strands; s++) p.at[s] = begin_of(e, c, s);
    return p;
}

/* Behind the first needed word of a strand from its place on, or behind the strand; `needed` says which. */
static u32 reach(const Engine *e, Chain c, const Place *p, u32 strand, int *needed) {
    u32 end = e->lists.p[c.ends + strand];
    *needed = 0;
    for (u32 i = p->at[strand]; i < end; i++)
        if ((*needed = e->lists.p[c.needed + i] != 0)) return i + 1;
    return end;
}

/* Whether every needed word was passed. */
static int may_close(const Engine *e, Chain c, const Place *p) {
    int needed = 0;
    for (u32 s = 0; s < c.strands && !needed; s++) reach(e, c, p, s, &needed);
    return !needed;
}

static u32 value_of(Engine *e, Chain c, u32 index) {
    if (e->lists.p[c.places + index] == UNKNOWN) {
        u32 value = ask(e, c, ASK_VALUE, index);
        e->lists.p[c.places + index] = value;
    }
    return e->lists.p[c.places + index];
}

/* OPEN for a word that may come; ASKED too, but not before a rule, as only its value tells; or EMPTY. */
static u32 part_of(Engine *e, Chain c, u32 index) {
    if (e->lists.p[c.parts + index] == UNKNOWN) open_stride(e, c, index / STRIDE * STRIDE);
    if (e->lists.p[c.parts + index] == ASKED && value_of(e, c, index) == EMPTY) e->lists.p[c.parts + index] = EMPTY;
    return e->lists.p[c.parts + index];
}

/* What may come behind all words, where none is needed any more. */
static u32 end_of(Engine *e, u32 chain) {
    Chain c = e->chains.p[chain];
    u32 end = e->lists.p[c.places + c.count];
    if (end != UNKNOWN) return end;
    if (c.others) {
        Place last = {{0}};
        memcpy(last.at, e->lists.p + c.ends, c.strands * sizeof *last.at);
        end = other_words(e, c, rule_of(e, chain, last, c.strands + OTHER));
    } else {
        end = ask(e, c, ASK_END, 0);
    }
    return e->lists.p[c.places + c.count] = end;
}

/* One more word, and all that may follow; EMPTY where none may come. */
static u32 more(Engine *e, u32 chain, const Place *p) {
    Chain c = e->chains.p[chain];
    int found = !may_close(e, c, p) || c.others; /* what is needed has a value */
    for (u32 s = 0; s < c.strands && !found; s++)
        for (u32 i = p->at[s]; i < e->lists.p[c.ends + s] && !found; i++) found = part_of(e, c, i) != EMPTY;
    return found || end_of(e, chain) != EMPTY ? rule_of(e, chain, *p, c.strands + WORD) : EMPTY;
}

/* A strand's word and what is behind it, which waits for the word where this can. */
static u32 behind_word(Engine *e, u32 chain, Place p, u32 strand, u32 index) {
    Chain c = e->chains.p[chain];
    p.at[strand] = index + 1;
    if (part_of(e, c, index) == OPEN) return rule_of(e, chain, p, strand);
    u32 after = rule_of(e, chain, p, c.strands + AFTER);
    return make_cat(e, c.marks.colon, make_cat(e, value_of(e, c, index), after));
}

/* Some words, in the order of their bytes, each before what is behind it. */
static u32 words_with(Engine *e, Chain c, const u32 *indices, const u32 *behind, u32 n) {
    if (!n) return EMPTY;
    WordTable t = {e->words.n, n, fresh_list(e, n), F_RULES};
    memcpy(e->lists.p + t.after, behind, n * sizeof *behind);
    for (u32 i = 0; i < n; i++) {
        Span word = e->words.p[c.words + indices[i]];
        PUSH(e, e->words, word);
    }
    PUSH(e, e->tables, t);
    return make_words(e, e->tables.n - 1, 0, n, 0);
}

static u32 strand_of(const Engine *e, Chain c, u32 index) {
    u32 strand = 0;
    while (index >= e->lists.p[c.ends + strand]) strand++;
    return strand;
}

/* The words that may come at a place: of each strand those up to the first that is needed. */
static u32 list_words(Engine *e, u32 chain, const Place *p) {
    Chain c = e->chains.p[chain];
    u32 stop[MAX_STRANDS], n = 0, ways[2], *indices = borrow(e, 2 * (c.count + 1) * sizeof *indices);
    int closes = 1, needed;
    for (u32 s = 0; s < c.strands; s++) {
        stop[s] = reach(e, c, p, s, &needed);
        closes &= !needed;
    }
    for (u32 k = 0; k < c.count; k++) {
        u32 i = e->lists.p[c.order + k], s = strand_of(e, c, i);
        if (i < p->at[s] || i >= stop[s] || part_of(e, c, i) == EMPTY) continue;
        u32 behind = behind_word(e, chain, *p, s, i);
        indices[n] = i;
        indices[c.count + 1 + n++] = behind;
    }
    spend(e, c.count);
    ways[0] = words_with(e, c, indices, indices + c.count + 1, n);
    give_back(e, indices);
    ways[1] = closes ? end_of(e, chain) : EMPTY;
    return make_alt(e, ways, 2);
}

/* ---- what chains.c asks for -------------------------------------------------------------------- */

typedef struct { const u8 *at; u32 length, index; } Name;

static int compare_names(const void *x, const void *y) {
    const Name *a = x, *b = y;
    u32 n = a->length, m = b->length;
    int order = memcmp(a->at, b->at, n < m ? n : m);
    return order ? order : (n > m) - (n < m);
}

static u32 order_of(Engine *e, Chain c) {
    Name *names = borrow(e, (c.count + 1) * sizeof *names);
    for (u32 i = 0; i < c.count; i++) {
        Span word = e->words.p[c.words + i];
        names[i] = (Name){e->pool.p + word.offset, word.length, i};
    }
    qsort(names, c.count, sizeof *names, compare_names);
    u32 order = fresh_list(e, c.count);
    for (u32 i = 0; i < c.count; i++) e->lists.p[order + i] = names[i].index;
    give_back(e, names);
    return order;
}

/* Returns the first rule of a braid, by which Python knows it: one more word, where none has come. */
u32 add_braid(Engine *e, const u8 *bytes, const u32 *lengths, const u8 *needed, const u32 *ends, u32 strands,
              u32 others, const Marks *marks) {
    Chain c = {.rules = e->rules.n, .count = ends[strands - 1], .others = others, .forms = NONE, .marks = *marks};
    add_chain_words(e, &c, bytes, lengths, needed);
    c.strands = strands;
    c.ends = fresh_list(e, strands);
    memcpy(e->lists.p + c.ends, ends, strands * sizeof *ends);
    c.order = order_of(e, c);
    PUSH(e, e->chains, c);
    rule_of(e, e->chains.n - 1, first_place(e, c), strands + WORD);
    return c.rules;
}

/* The opening and all that follows. */
u32 whole_braid(Engine *e, u32 chain) {
    Chain c = e->chains.p[chain];
    Place p = first_place(e, c);
    u32 ways[2] = {may_close(e, c, &p) ? c.marks.empty : EMPTY, more(e, chain, &p)};
    return make_cat(e, c.marks.opening, make_alt(e, ways, 2));
}

static Place place_of(const Engine *e, u32 rule, u32 strands) {
    Place p;
    memcpy(p.at, e->lists.p + e->rules.p[rule].place, (strands + 1) * sizeof *p.at);
    return p;
}

/* The body of a rule of a braid. */
u32 braid_body(Engine *e, u32 rule) {
    u32 chain = e->rules.p[rule].chain - 1, ways[2];
    Chain c = e->chains.p[chain];
    Place p = place_of(e, rule, c.strands);
    u32 what = p.at[c.strands], value = EPS;
    if (what == c.strands + WORD) return list_words(e, chain, &p);
    if (what < c.strands) value = value_of(e, c, p.at[what] - 1);
    if (what == c.strands + OTHER) value = ask(e, c, ASK_OTHER, 0);
    ways[0] = may_close(e, c, &p) ? c.marks.close : EMPTY;
    ways[1] = make_cat(e, c.marks.comma, more(e, chain, &p));
    u32 rest = make_cat(e, value, make_alt(e, ways, 2));
    return what == c.strands + AFTER ? rest : make_cat(e, c.marks.colon, rest);
}

/* The part of a rule for one more word that has a shortest text of it: the first needed word that is
   left. Another order makes no text shorter, and a search would go through every subset of them. */
u32 braid_way(Engine *e, u32 rule) {
    u32 chain = e->rules.p[rule].chain - 1;
    Chain c = e->chains.p[chain];
    Place p = place_of(e, rule, c.strands);
    for (u32 s = 0; s < c.strands; s++) {
        int needed;
        u32 end = reach(e, c, &p, s, &needed), index = end - 1;
        if (!needed) continue;
        u32 behind = behind_word(e, chain, p, s, index);
        return words_with(e, c, &index, &behind, 1);
    }
    return rule_body(e, rule, 0);
}
