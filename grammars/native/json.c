/* A JSON text as pieces: every value before those inside it. What is doubtful is not read here but by
   Python, whose word on it counts: numbers of many digits, deep nesting, what is no JSON at all. */
#include "engine.h"
#include <string.h>

enum { MAX_DEPTH = 100, MAX_DIGITS = 60, MAX_EXPONENT = 2 }; /* of a number: its length; digits behind e */

typedef struct { Engine *e; const u8 *text; u32 at, length; } Source;

static u8 here(const Source *s) { return s->at < s->length ? s->text[s->at] : 0; }

static int is_blank(u8 byte) { return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r'; }

static void skip_blanks(Source *s) {
    while (is_blank(here(s))) s->at++;
}

static int take_byte(Source *s, u8 byte) {
    skip_blanks(s);
    if (here(s) != byte || s->at >= s->length) return 0;
    s->at++;
    return 1;
}

static u32 add_piece(Source *s, u8 kind) {
    PUSH(s->e, s->e->pieces, ((Piece){.kind = kind, .at = s->at}));
    return s->e->pieces.n - 1;
}

static int end_piece(Source *s, u32 piece) {
    Piece *p = s->e->pieces.p + piece;
    p->length = s->at - p->at;
    p->end = s->e->pieces.n;
    return 1;
}

static int is_digit(u8 byte) { return byte >= '0' && byte <= '9'; }
static int is_hex(u8 byte) { return is_digit(byte) || ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'f'); }

/* Behind the backslash of an escape. */
static int read_escape(Source *s) {
    u8 letter = here(s);
    s->at++;
    if (letter != 'u') return letter && strchr("\"\\/bfnrt", letter) != NULL;
    for (u32 i = 0; i < 4; i++, s->at++)
        if (!is_hex(here(s))) return 0;
    return 1;
}

static int read_string(Source *s) {
    if (!take_byte(s, '"')) return 0;
    u32 piece = add_piece(s, P_STRING);
    u8 plain = 1;
    for (u8 byte; (byte = here(s)) != '"';) {
        if (byte < 0x20) return 0; /* the end, too */
        s->at++;
        if (byte == '\\' && !read_escape(s)) return 0;
        if (byte == '\\' || byte > '~') plain = 0;
    }
    s->e->pieces.p[piece].plain = plain;
    end_piece(s, piece);
    s->at++;
    return 1;
}

static u32 read_digits(Source *s) {
    u32 from = s->at;
    while (is_digit(here(s))) s->at++;
    return s->at - from;
}

static int read_number(Source *s) {
    u32 piece = add_piece(s, P_NUMBER), from = s->at;
    if (here(s) == '-') s->at++;
    int starts_with_zero = here(s) == '0';
    u32 whole = read_digits(s), behind = s->at;
    if (!whole || (starts_with_zero && whole > 1)) return 0;
    if (here(s) == '.') {
        s->at++;
        if (!read_digits(s)) return 0;
    }
    if ((here(s) | 0x20) == 'e') {
        s->at++;
        if (here(s) == '+' || here(s) == '-') s->at++;
        u32 exponent = read_digits(s);
        if (!exponent || exponent > MAX_EXPONENT) return 0;
    }
    if (s->at == behind && whole == s->at - from) s->e->pieces.p[piece].kind = P_WHOLE;
    return s->at - from <= MAX_DIGITS && end_piece(s, piece);
}

static int read_word(Source *s, u8 kind, const char *word) {
    u32 piece = add_piece(s, kind), length = (u32)strlen(word);
    if (s->length - s->at < length || memcmp(s->text + s->at, word, length) != 0) return 0;
    s->at += length;
    return end_piece(s, piece);
}

static int read_value(Source *s, u32 depth);

/* What stands between brackets: values, or names and values. */
static int read_inside(Source *s, u8 kind, u8 close, u32 depth) {
    u32 piece = add_piece(s, kind);
    s->at++;
    if (!take_byte(s, close)) {
        do {
            if (kind == P_OBJECT && !(read_string(s) && take_byte(s, ':'))) return 0;
            if (!read_value(s, depth)) return 0;
        } while (take_byte(s, ','));
        if (!take_byte(s, close)) return 0;
    }
    return end_piece(s, piece);
}

static int read_value(Source *s, u32 depth) {
    skip_blanks(s);
    if (depth > MAX_DEPTH) return 0;
    switch (here(s)) {
    case '{': return read_inside(s, P_OBJECT, '}', depth + 1);
    case '[': return read_inside(s, P_ARRAY, ']', depth + 1);
    case '"': return read_string(s);
    case 't': return read_word(s, P_TRUE, "true");
    case 'f': return read_word(s, P_FALSE, "false");
    case 'n': return read_word(s, P_NULL, "null");
    default: return read_number(s);
    }
}

/* Read a text into the engine's pieces. Returns whether it is JSON without doubt. */
int read_json(Engine *e, const u8 *text, u32 length) {
    Source s = {e, text, 0, length};
    e->pieces.n = 0;
    spend(e, length);
    if (!read_value(&s, 0)) return 0;
    skip_blanks(&s);
    return s.at == s.length;
}
