/* Plain schemas: those whose text shows what they denote, read into chains and lists without Python.

   json_check.py says what a keyword may be, json_keywords.py and json_plain.py what it denotes; this
   is the same for a part of them, and an equal grammar. A text with anything else, or with a value of
   another kind than expected, is left to them as a whole, so that every refusal is theirs. */
#include "schemas.h"

enum { MAX_HOPS = 32, MAX_PASSES = 32, MAX_BRANCHES = 16 };

static const struct { const char *name; u8 keyword; } KEYWORDS[] = {
    {"type", TYPE}, {"$ref", REF}, {"id", NAME}, {"$id", NAME}, {"properties", PROPERTIES},
    {"required", REQUIRED}, {"additionalProperties", ADDITIONAL}, {"items", ITEMS}, {"minItems", LOW},
    {"maxItems", HIGH}, {"uniqueItems", UNIQUE}, {"enum", ENUM}, {"const", CONST}, {"pattern", SCALAR},
    {"format", SCALAR}, {"minLength", SCALAR}, {"maxLength", SCALAR}, {"minimum", SCALAR},
    {"maximum", SCALAR}, {"exclusiveMinimum", SCALAR}, {"exclusiveMaximum", SCALAR},
    {"multipleOf", SCALAR}, {"divisibleBy", SCALAR}, {"anyOf", ANY_OF}, {"oneOf", ONE_OF},
    {"allOf", OTHER}, {"not", OTHER}, {"if", OTHER}, {"then", OTHER}, {"else", OTHER},
    {"patternProperties", OTHER}, {"propertyNames", OTHER}, {"minProperties", OTHER},
    {"maxProperties", OTHER}, {"dependencies", OTHER}, {"dependentRequired", OTHER},
    {"dependentSchemas", OTHER}, {"unevaluatedProperties", OTHER}, {"prefixItems", OTHER},
    {"additionalItems", 0 /* void but for items in a list */}, {"unevaluatedItems", OTHER},
    {"contains", OTHER}, {"minContains", OTHER}, {"maxContains", OTHER}, {"extends", OTHER}, {"disallow", OTHER},
    {"$anchor", OTHER}, {"$dynamicAnchor", OTHER}, {"$recursiveAnchor", OTHER},
    {"$dynamicRef", OTHER}, {"$recursiveRef", OTHER},
};

static const char *const TYPES[] = {"object", "array", "string", "number", "integer", "boolean", "null"};

static int is_same(const Reader *r, Piece a, Piece b) {
    return a.length == b.length && !memcmp(r->text + a.at, r->text + b.at, a.length);
}

/* The value of a name in an object; NONE where there is none, or not plainly one. */
static u32 named(const Reader *r, u32 object, Piece wanted) {
    u32 found = NONE;
    spend(r->e, piece_at(r, object).end - object);
    NAMES(r, object, name) {
        if (!piece_at(r, name).plain || (found != NONE && is_same(r, piece_at(r, name), wanted))) return NONE;
        if (is_same(r, piece_at(r, name), wanted)) found = name + 1;
    }
    return found;
}

enum Keyword keyword_of(const Reader *r, Piece name) {
    for (u32 i = 0; i < sizeof KEYWORDS / sizeof *KEYWORDS; i++)
        if (r->text[name.at] == (u8)*KEYWORDS[i].name && spells(r, name, KEYWORDS[i].name))
            return KEYWORDS[i].keyword;
    return 0;
}

/* A URI that a schema has of its own, if it is one: a reference inside may mean another text then. */
static int read_name(Reader *r, u32 schema, u32 name) {
    Piece p = piece_at(r, name);
    if (p.kind != P_STRING) return 1;
    r->has_names |= schema != 0;
    return p.plain && !memchr(r->text + p.at, '[', p.length) && !memchr(r->text + p.at, ']', p.length);
}

/* What a schema says. Returns 0 for what is not read here. */
static int read_said(Reader *r, u32 schema, Said *out) {
    memset(out, 0, sizeof *out);
    NAMES(r, schema, name) {
        Piece p = piece_at(r, name);
        enum Keyword keyword = keyword_of(r, p);
        if (!p.plain || keyword == OTHER || (keyword == NAME && !read_name(r, schema, name + 1))) return 0;
        if (keyword && keyword != SCALAR && keyword != NAME && out->said[keyword]) return 0;
        out->said[keyword] = name + 1;
    }
    return 1;
}

/* ---- references --------------------------------------------------------------------------------- */

/* The value in an object or array that a step of a pointer leads to; NONE for what is not plain. */
static u32 stepped(const Reader *r, u32 from, Piece step) {
    if (piece_at(r, from).kind == P_OBJECT) return named(r, from, step);
    if (piece_at(r, from).kind != P_ARRAY || !step.length || step.length > 4) return NONE;
    u32 index = 0;
    for (u32 i = 0; i < step.length; i++) {
        if (r->text[step.at + i] < '0' || r->text[step.at + i] > '9') return NONE;
        index = index * 10 + r->text[step.at + i] - '0';
    }
    VALUES(r, from, value)
        if (!index--) return value;
    return NONE;
}

static int has_name(const Reader *r, u32 object) {
    if (piece_at(r, object).kind != P_OBJECT) return 0;
    NAMES(r, object, name) {
        Piece p = piece_at(r, name);
        if ((spells(r, p, "id") || spells(r, p, "$id")) && piece_at(r, name + 1).kind == P_STRING) return 1;
    }
    return 0;
}

/* What a reference to a place in this text points to; NONE for any other. */
static u32 target_of(const Reader *r, u32 reference) {
    Piece p = piece_at(r, reference);
    const u8 *text = r->text + p.at;
    if (p.kind != P_STRING || !p.plain || !p.length || text[0] != '#') return NONE;
    if (memchr(text, '%', p.length) || memchr(text, '~', p.length)) return NONE;
    if (p.length > 1 && text[1] != '/') return NONE;
    u32 here = 0;
    for (u32 i = 1; i < p.length;) {
        Piece step = {.at = p.at + i + 1};
        while (i + 1 + step.length < p.length && text[i + 1 + step.length] != '/') step.length++;
        here = stepped(r, here, step);
        if (here == NONE) return NONE;
        i += 1 + step.length;
        if (i < p.length && has_name(r, here)) return NONE;
    }
    return here;
}

/* The reference that stands for a schema, 0 where there is none. Returns 0 for what is not read here:
   up to draft 7 what stands beside a reference is void, later it holds as well. */
static int read_reference(Reader *r, u32 schema, u32 *out) {
    *out = 0;
    NAMES(r, schema, name) {
        if (!piece_at(r, name).plain) return 0;
        if (!spells(r, piece_at(r, name), "$ref")) continue;
        if (*out) return 0;
        *out = name + 1;
    }
    if (!*out) return 1;
    Said s;
    if (!r->hides_siblings && !read_said(r, schema, &s)) return 0;
    for (u32 k = 1; k < OTHER && !r->hides_siblings; k++)
        if (s.said[k] && k != REF && k != NAME) return 0;
    r->has_references = 1;
    return 1;
}

/* Whether the root names a draft up to 7. Returns 0 for what is not plainly one. */
static int read_draft(Reader *r) {
    static const char *const OLD[] = {"draft-03", "draft-04", "draft-06", "draft-07"};
    u32 stated = 0;
    if (piece_at(r, 0).kind != P_OBJECT) return 1;
    NAMES(r, 0, name) {
        if (!spells(r, piece_at(r, name), "$schema")) continue;
        if (stated) return 0;
        stated = name + 1;
    }
    Piece p = piece_at(r, stated);
    if (!stated || p.kind != P_STRING) return 1;
    for (u32 from = 0; from + 8 <= p.length; from++)
        for (u32 i = 0; i < sizeof OLD / sizeof *OLD; i++)
            if (!memcmp(r->text + p.at + from, OLD[i], 8)) r->hides_siblings = 1;
    return p.plain;
}

/* ---- reading ------------------------------------------------------------------------------------ */

/* The place of a form that is not read yet, made if it is new; NONE for what is not read here. */
static u32 form_of(Reader *r, u32 piece) {
    Engine *e = r->e;
    u32 here = piece;
    for (u32 hops = 0; !piece_at(r, here).form && piece_at(r, here).kind == P_OBJECT; hops++) {
        u32 reference;
        if (hops > MAX_HOPS || !read_reference(r, here, &reference)) return NONE;
        if (!reference) break;
        if ((here = target_of(r, reference)) == NONE) return NONE;
    }
    Piece p = piece_at(r, here);
    if (!p.form) {
        if ((p.kind != P_OBJECT && p.kind != P_TRUE) || e->forms.n - r->first >= MAX_FORMS) return NONE;
        r->places[e->forms.n - r->first] = here;
        *draft_of(r, e->forms.n) = (Draft){0};
        PUSH(e, e->forms, ((SchemaForm){0}));
        e->pieces.p[here].form = e->forms.n;
    }
    e->pieces.p[piece].form = e->pieces.p[here].form;
    return e->pieces.p[here].form - 1;
}

static u32 type_of(const Reader *r, u32 piece) {
    for (u32 i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        if (piece_at(r, piece).kind == P_STRING && spells(r, piece_at(r, piece), TYPES[i])) return 1u << i;
    return 0;
}

/* The types that `type` names; 0 for what is none. */
u32 types_of(const Reader *r, u32 stated) {
    if (!stated) return T_ALL;
    if (piece_at(r, stated).kind != P_ARRAY) return type_of(r, stated);
    u32 found = 0;
    VALUES(r, stated, value) {
        u32 one = type_of(r, value);
        if (!one) return 0;
        found |= one;
    }
    return found;
}

/* A count, or `none` for no keyword. Returns 0 for what is not plainly one. */
int read_count(const Reader *r, u32 piece, u32 none, u32 *out) {
    *out = none;
    if (!piece) return 1;
    Piece p = piece_at(r, piece);
    if (p.kind != P_WHOLE || p.length > 9) return 0;
    *out = 0;
    for (u32 i = 0; i < p.length; i++) *out = *out * 10 + r->text[p.at + i] - '0';
    return 1;
}

static int is_list_of_strings(const Reader *r, u32 list) {
    if (piece_at(r, list).kind != P_ARRAY) return 0;
    VALUES(r, list, value)
        if (piece_at(r, value).kind != P_STRING) return 0;
    return 1;
}

/* Marks the names that have to be there in their own pieces. */
static int read_required(const Reader *r, u32 required, u32 properties) {
    if (!required) return 1;
    if (piece_at(r, required).kind != P_ARRAY) return 0;
    u32 listed = 0;
    VALUES(r, required, value) {
        Piece p = piece_at(r, value);
        u32 found = p.kind == P_STRING && p.plain && properties ? named(r, properties, p) : NONE;
        if (found == NONE || ++listed > MAX_NAMES) return 0;
        r->e->pieces.p[found - 1].form = 1;
    }
    return 1;
}

static int read_object(Reader *r, const Said *s, Draft d, u32 form) {
    u32 names = 0;
    d.properties = s->said[PROPERTIES], d.additional = s->said[ADDITIONAL];
    if (d.properties) {
        if (piece_at(r, d.properties).kind != P_OBJECT) return 0;
        NAMES(r, d.properties, name) {
            if (++names > MAX_NAMES || named(r, d.properties, piece_at(r, name)) == NONE) return 0;
            if (form_of(r, name + 1) == NONE) return 0;
        }
    }
    if (d.additional && piece_at(r, d.additional).kind != P_FALSE && form_of(r, d.additional) == NONE) return 0;
    u32 required = s->said[REQUIRED];
    if (!(d.types & T_OBJECT) && required) return is_list_of_strings(r, required); /* it says nothing */
    if (!read_required(r, required, d.properties)) return 0;
    *draft_of(r, form) = d;
    return 1;
}

static int read_array(Reader *r, const Said *s, Draft d, u32 form) {
    d.items = s->said[ITEMS];
    if (!read_count(r, s->said[LOW], 0, &d.low) || !read_count(r, s->said[HIGH], NONE, &d.high)) return 0;
    if (d.low > d.high || d.low > MAX_LEAST || (s->said[UNIQUE] && piece_at(r, s->said[UNIQUE]).kind != P_FALSE)) return 0;
    if (d.items && form_of(r, d.items) == NONE) return 0;
    *draft_of(r, form) = d;
    return 1;
}

static int read_choice(Reader *r, const Said *s, u32 form) {
    u32 choice = s->said[ANY_OF] ? s->said[ANY_OF] : s->said[ONE_OF], count = 0;
    if ((s->said[ANY_OF] && s->said[ONE_OF]) || piece_at(r, choice).kind != P_ARRAY) return 0;
    VALUES(r, choice, branch)
        if (++count > MAX_BRANCHES || form_of(r, branch) == NONE) return 0;
    draft_of(r, form)->choice = choice;
    draft_of(r, form)->is_one = s->said[ONE_OF] != 0;
    return count > 0;
}

/* Whether the branches of a choice add up to what each says: scalars of different types, and, where
   exactly one has to hold, values of different types. Any value at all is spelled otherwise there. */
static int is_plain_choice(const Reader *r, const Draft *d) {
    u32 seen = 0;
    VALUES(r, d->choice, branch) {
        const Draft *one = draft_of(r, piece_at(r, branch).form - 1);
        u32 types = one->types & T_INTEGER ? one->types | T_NUMBER : one->types;
        if (one->choice || one->is_any || seen & types & (d->is_one ? T_ALL : ~(T_OBJECT | T_ARRAY))) return 0;
        seen |= types;
    }
    return 1;
}

/* Read one schema, and make places for those inside. Returns 0 for what is not read here. */
static int read_form(Reader *r, u32 form) {
    u32 schema = r->places[form - r->first];
    Said s;
    Draft d = {.is_any = piece_at(r, schema).end == schema + 1};
    *draft_of(r, form) = d;
    if (d.is_any) return 1;
    if (!read_said(r, schema, &s) || !(d.types = types_of(r, s.said[TYPE]))) return 0;
    int of_objects = s.said[PROPERTIES] || s.said[REQUIRED] || s.said[ADDITIONAL];
    int of_arrays = s.said[ITEMS] || s.said[LOW] || s.said[HIGH] || s.said[UNIQUE];
    int of_scalars = s.said[ENUM] || s.said[CONST] || s.said[SCALAR];
    if (s.said[ANY_OF] || s.said[ONE_OF])
        return !of_objects && !of_arrays && !of_scalars && !s.said[TYPE] && read_choice(r, &s, form);
    if (of_scalars) return !of_objects && !of_arrays && read_scalars(r, &s, schema, form);
    *draft_of(r, form) = d;
    if ((of_objects || d.types & T_OBJECT) && !read_object(r, &s, d, form)) return 0;
    return !(of_arrays || d.types & T_ARRAY) || read_array(r, &s, *draft_of(r, form), form);
}

/* Whether what a schema needs inside is known to have a value. */
static int is_sure(const Reader *r, const Draft *d) {
    if (d->choice) {
        VALUES(r, d->choice, branch)
            if (draft_of(r, piece_at(r, branch).form - 1)->is_sure) return 1;
        return 0;
    }
    if (d->types & T_OBJECT && d->properties)
        NAMES(r, d->properties, name)
            if (piece_at(r, name).form && !draft_of(r, piece_at(r, name + 1).form - 1)->is_sure) return 0;
    return !(d->types & T_ARRAY) || !d->items || !d->low || draft_of(r, piece_at(r, d->items).form - 1)->is_sure;
}

/* Whether every schema has a value: those inside mostly come later. */
static int all_sure(const Reader *r) {
    u32 n = r->e->forms.n - r->first, left = n, before = 0;
    for (u32 pass = 0; left && left != before && pass < MAX_PASSES; pass++) {
        before = left;
        for (u32 i = n; i-- > 0;)
            if (!r->drafts[i].is_sure && is_sure(r, r->drafts + i)) r->drafts[i].is_sure = 1, left--;
    }
    return !left;
}

/* Read the schemas of a text that is in pieces. Returns 0 for one that is not read here. */
int read_forms(Reader *r) {
    if (!read_draft(r) || form_of(r, 0) == NONE) return 0;
    for (u32 form = r->first; form < r->e->forms.n; form++)
        if (!read_form(r, form)) return 0;
    for (u32 i = 0; i < r->e->forms.n - r->first; i++)
        if (r->drafts[i].choice && !is_plain_choice(r, r->drafts + i)) return 0;
    if ((r->has_names && r->has_references) || !all_sure(r)) return 0;
    for (u32 i = 0; i < r->e->forms.n - r->first; i++) /* last, as it takes long */
        if (r->drafts[i].asks && !ask_whether(r, r->first + i)) return 0;
    return 1;
}
