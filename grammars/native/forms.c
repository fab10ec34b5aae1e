/* The forms of plain schemas: what schemas.c has read, made into chains, lists and nodes. */
#include "schemas.h"
#include <stdlib.h>
#include <string.h>

enum { ASK_TEXT = -1 }; /* the node of a form that has a text */

typedef struct { const u8 *at; u32 length; } Name;

static int compare_names(const void *x, const void *y) {
    const Name *a = x, *b = y;
    int order = memcmp(a->at, b->at, a->length < b->length ? a->length : b->length);
    return order ? order : (a->length > b->length) - (a->length < b->length);
}

/* Strings with their quotes, sorted and distinct. */
static u32 make_listed(const Reader *r, u32 list) {
    Engine *e = r->e;
    u32 most = piece_at(r, list).end - list - 1, n = 0, size = 0, kept = 0;
    Name *names = borrow(e, most * sizeof *names);
    VALUES(r, list, value) {
        names[n++] = (Name){r->text + piece_at(r, value).at - 1, piece_at(r, value).length + 2};
        size += names[n - 1].length;
    }
    qsort(names, n, sizeof *names, compare_names);
    u32 *lengths = borrow(e, n * sizeof *lengths);
    u8 *bytes = borrow(e, size), *at = bytes;
    for (u32 i = 0; i < n; i++) {
        if (i && !compare_names(names + i - 1, names + i)) continue;
        memcpy(at, names[i].at, names[i].length);
        at += lengths[kept++] = names[i].length;
    }
    u32 made = add_words(e, bytes, lengths, kept, NULL);
    give_back(e, bytes), give_back(e, lengths), give_back(e, names);
    return made;
}

static u32 make_object(const Reader *r, const Draft *d, u32 any) {
    Engine *e = r->e;
    u32 most = d->properties ? piece_at(r, d->properties).length : 0, n = 0; /* a word is in that text */
    u8 *bytes = borrow(e, most), *needed = borrow(e, most), *at = bytes;
    u32 *lengths = borrow(e, most * sizeof *lengths), *forms = borrow(e, (most + 1) * sizeof *forms);
    if (d->properties)
        NAMES(r, d->properties, name) {
            Piece p = piece_at(r, name);
            forms[n] = piece_at(r, name + 1).form - 1;
            needed[n] = p.form != 0;
            memcpy(at, r->text + p.at - 1, p.length + 2);
            at += lengths[n++] = p.length + 2;
        }
    int is_closed = d->additional && piece_at(r, d->additional).kind == P_FALSE;
    forms[n] = d->additional && !is_closed ? piece_at(r, d->additional).form - 1 : any;
    u32 rules = add_chain(e, bytes, lengths, needed, n, !is_closed, &r->fixed->members);
    set_forms(e, rules, forms, n + 1);
    give_back(e, forms), give_back(e, lengths), give_back(e, needed), give_back(e, bytes);
    return e->rules.p[rules].chain;
}

static u32 make_array(const Reader *r, const Draft *d, u32 any) {
    u32 items = d->items ? piece_at(r, d->items).form - 1 : any;
    u32 rule = add_list(r->e, d->low, d->high, &r->fixed->items);
    set_forms(r->e, rule, &items, 1);
    return r->e->rules.p[rule].chain;
}

/* Every value of some types that are scalars. */
static u32 make_types(const Reader *r, u32 types) {
    const Fixed *f = r->fixed;
    u32 ways[4], n = 0;
    if (types & T_STRING) ways[n++] = f->string;
    if (types & (T_NUMBER | T_INTEGER)) ways[n++] = types & T_NUMBER ? f->number : f->integer;
    if (types & T_BOOLEAN) ways[n++] = f->boolean;
    if (types & T_NULL) ways[n++] = f->null;
    return make_alt(r->e, ways, n);
}

/* Where the forms of a choice stand, behind their number, + 1. */
static u32 make_choice(const Reader *r, u32 choice) {
    Engine *e = r->e;
    u32 at = e->lists.n;
    PUSH(e, e->lists, 0);
    VALUES(r, choice, branch) PUSH(e, e->lists, piece_at(r, branch).form - 1);
    e->lists.p[at] = e->lists.n - at - 1;
    return at + 1;
}

static void make_form(const Reader *r, u32 form, u32 any) {
    Engine *e = r->e;
    const Draft *d = draft_of(r, form);
    SchemaForm f = e->forms.p[form];
    if (d->is_any) f.node = r->fixed->any;
    else if (d->choice) f.choice = make_choice(r, d->choice);
    else if (d->words) f.node = make_listed(r, d->words);
    else if (!f.text) {
        f.node = make_types(r, d->types);
        if (d->types & T_OBJECT) f.object = make_object(r, d, any);
        if (d->types & T_ARRAY) f.array = make_array(r, d, any);
    }
    e->forms.p[form] = f;
}

/* Returns the form of the root, + 1; 0 for a text that is not plain. */
u32 read_schema(Engine *e, const u8 *text, u32 length, const Fixed *fixed) {
    u32 words = e->words.n, pool = e->pool.n;
    if (!read_json(e, text, length)) return 0;
    Reader r = {.e = e, .text = text, .fixed = fixed, .first = e->forms.n};
    u32 most = e->pieces.n < MAX_FORMS ? e->pieces.n : MAX_FORMS;
    r.drafts = borrow(e, most * sizeof *r.drafts);
    r.places = borrow(e, most * sizeof *r.places);
    int is_plain = read_forms(&r);
    if (!is_plain) e->forms.n = r.first, e->words.n = words, e->pool.n = pool; /* as before */
    u32 end = e->forms.n, any = end; /* one more, of any value */
    if (is_plain) PUSH(e, e->forms, ((SchemaForm){.node = fixed->any}));
    for (u32 form = r.first; form < end; form++) make_form(&r, form, any);
    give_back(e, r.places), give_back(e, r.drafts);
    return is_plain ? r.first + 1 : 0;
}

static u32 choice_value(Engine *e, u32 at) {
    u32 n = e->lists.p[at], *ways = borrow(e, n * sizeof *ways);
    for (u32 i = 0; i < n; i++) ways[i] = form_value(e, e->lists.p[at + 1 + i]); /* none a choice */
    u32 node = make_alt(e, ways, n);
    give_back(e, ways);
    return node;
}

/* The node of the values of a form. */
u32 form_value(Engine *e, u32 form) {
    SchemaForm f = e->forms.p[form];
    u32 ways[3], n = 0;
    if (f.choice) return choice_value(e, f.choice - 1);
    if (f.text && !f.node) {
        i32 answer = e->expand(form, ASK_TEXT); /* may add anything */
        if (answer < 0) fail(e, CALLBACK);
        e->forms.p[form].node = f.node = (u32)answer;
    }
    if (f.node) ways[n++] = f.node;
    if (f.object) ways[n++] = whole_chain(e, f.object - 1);
    if (f.array) ways[n++] = whole_chain(e, f.array - 1);
    return make_alt(e, ways, n);
}

/* The first form from this one on with a text that Python was not asked to read yet; their number where
   there is none. */
u32 next_text(const Engine *e, u32 form) {
    while (form < e->forms.n && (!e->forms.p[form].text || e->forms.p[form].node)) form++;
    return form;
}

/* The first form from this one on of objects with so many names; the number of forms where there is none. */
u32 next_wide(const Engine *e, u32 form, u32 names) {
    for (; form < e->forms.n; form++) {
        u32 chain = e->forms.p[form].object;
        if (chain && e->chains.p[chain - 1].count >= names) break;
    }
    return form;
}
