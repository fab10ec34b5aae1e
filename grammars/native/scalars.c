/* Plain schemas of scalars: listed strings, and what Python reads from a text of its own. */
#include "schemas.h"

enum { MAX_LISTED = 4096, MAX_TEXT = 4096, MAX_ASKED = 32 };
enum { ASK_WHETHER = -2 }; /* whether Python can read the text of a form, and finds that it has a value */

/* Whether all listed values are plain strings. */
static int lists_strings(const Reader *r, u32 list) {
    u32 count = 0;
    VALUES(r, list, value)
        if (piece_at(r, value).kind != P_STRING || !piece_at(r, value).plain || ++count > MAX_LISTED) return 0;
    return count > 0;
}

/* The types that a value surely has; 0 for objects and arrays. */
static u32 types_of_value(Piece value) {
    static const u8 types[] = {[P_STRING] = T_STRING,  [P_WHOLE] = T_INTEGER | T_NUMBER,
                               [P_NUMBER] = T_NUMBER,  [P_TRUE] = T_BOOLEAN,
                               [P_FALSE] = T_BOOLEAN,  [P_NULL] = T_NULL};
    return types[value.kind];
}

/* The types of listed values; 0 where some are objects or arrays, or there are none. */
static u32 types_of_list(const Reader *r, u32 list) {
    u32 found = 0;
    VALUES(r, list, value) {
        u32 types = types_of_value(piece_at(r, value));
        if (!types) return 0;
        found |= types;
    }
    return found;
}

/* A bound that is a whole number of few digits. */
static int read_bound(const Reader *r, u32 piece, i32 *out) {
    Piece p = piece_at(r, piece);
    int is_negative = r->text[p.at] == '-';
    if ((p.kind != P_WHOLE && p.kind != P_NUMBER) || p.length > 9) return 0;
    *out = 0;
    for (u32 i = (u32)is_negative; i < p.length; i++) {
        u8 byte = r->text[p.at + i];
        if (byte < '0' || byte > '9') return 0;
        *out = *out * 10 + byte - '0';
    }
    if (is_negative) *out = -*out;
    return 1;
}

/* Whether a format has texts, or says nothing. */
static int is_kept_format(const Reader *r, u32 piece) {
    Piece p = piece_at(r, piece);
    return p.kind == P_STRING && p.plain && !spells(r, p, "idn-hostname");
}

/* Whether a look shows that what a schema says beside its types is right, and leaves it a value: no
   more than a length, or bounds, or a format. */
static int is_plain_scalar(const Reader *r, u32 schema, u32 types) {
    enum { LENGTH = 1, BOUNDS, FORMAT };
    u32 about = 0, low = 0, high = NONE;
    i32 least = INT32_MIN, most = INT32_MAX;
    NAMES(r, schema, name) {
        Piece p = piece_at(r, name);
        if (keyword_of(r, p) != SCALAR) continue;
        u32 before = about, value = name + 1;
        if (spells(r, p, "minLength") && read_count(r, value, 0, &low)) about = LENGTH;
        else if (spells(r, p, "maxLength") && read_count(r, value, 0, &high)) about = LENGTH;
        else if (spells(r, p, "minimum") && read_bound(r, value, &least)) about = BOUNDS;
        else if (spells(r, p, "maximum") && read_bound(r, value, &most)) about = BOUNDS;
        else if (spells(r, p, "format") && is_kept_format(r, value)) about = FORMAT;
        else return 0;
        if (before && (before != about || about == FORMAT)) return 0;
    }
    u32 others = types & ~(u32)(about == BOUNDS ? T_NUMBER | T_INTEGER : T_STRING);
    return low <= MAX_LEAST && (others || (low <= high && least <= most));
}

static void append(Engine *e, const u8 *bytes, u32 length) {
    RESERVE(e, e->pool, length);
    memcpy(e->pool.p + e->pool.n, bytes, length);
    e->pool.n += length;
}

/* Keep what a schema says of scalars as a text of its own, without all that says nothing: texts that
   say the same are then the same. Returns 0 for a long one. */
static int keep_text(Reader *r, u32 schema, u32 form) {
    Engine *e = r->e;
    u32 from = e->pool.n;
    NAMES(r, schema, name) {
        enum Keyword keyword = keyword_of(r, piece_at(r, name));
        if (keyword != TYPE && keyword < ENUM) continue;
        Piece p = piece_at(r, name), v = piece_at(r, name + 1);
        u32 quotes = v.kind == P_STRING;
        append(e, (const u8 *)(e->pool.n == from ? "{" : ","), 1);
        append(e, r->text + p.at - 1, p.length + 2);
        append(e, (const u8 *)":", 1);
        append(e, r->text + v.at - quotes, v.length + 2 * quotes);
    }
    append(e, (const u8 *)"}", 2); /* and the end of a C string */
    PUSH(e, e->words, ((Span){from, e->pool.n - from - 1}));
    e->forms.p[form].text = e->words.n;
    return e->pool.n - from <= MAX_TEXT;
}

/* Whether Python reads a form and finds a value. Within the compile, which others may wait for: not of
   many. */
int ask_whether(Reader *r, u32 form) {
    if (++r->num_asked > MAX_ASKED) return 0;
    i32 answer = r->e->expand(form, ASK_WHETHER);
    if (answer < 0) fail(r->e, CALLBACK);
    return answer;
}

/* Read a schema that speaks of scalars alone. Returns 0 for what is not read here. */
int read_scalars(Reader *r, const Said *s, u32 schema, u32 form) {
    u32 listed = s->said[ENUM], constant = s->said[CONST], types = types_of(r, s->said[TYPE]), values = types;
    if (listed && piece_at(r, listed).kind != P_ARRAY) return 0;
    if (listed && !(values = types_of_list(r, listed))) return 0;
    if (constant && !(values = types_of_value(piece_at(r, constant)))) return 0;
    int is_alone = !(listed && constant) && !s->said[SCALAR];
    if (listed && is_alone && (!s->said[TYPE] || types == T_STRING) && lists_strings(r, listed)) {
        draft_of(r, form)->words = listed;
        draft_of(r, form)->types = T_STRING;
        return 1;
    }
    if (s->said[TYPE] ? types & (T_OBJECT | T_ARRAY) : !listed && !constant) return 0;
    NAMES(r, schema, name)
        if (keyword_of(r, piece_at(r, name)) == SCALAR && piece_at(r, name + 1).kind <= P_ARRAY) return 0;
    draft_of(r, form)->types = s->said[TYPE] ? types : values;
    if (!keep_text(r, schema, form)) return 0;
    if (listed || constant ? is_alone && values & types : is_plain_scalar(r, schema, types)) return 1;
    draft_of(r, form)->asks = 1;
    return 1;
}
