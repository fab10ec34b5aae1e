/* Plain schemas while they are read (schemas.c) and made (forms.c). */
#ifndef RADIXGEN_SCHEMAS_H
#define RADIXGEN_SCHEMAS_H

#include "engine.h"
#include <string.h>

enum { MAX_FORMS = 20000, MAX_NAMES = 512, MAX_LEAST = 1 << 16 };
enum { T_OBJECT = 1, T_ARRAY = 2, T_STRING = 4, T_NUMBER = 8, T_INTEGER = 16, T_BOOLEAN = 32, T_NULL = 64,
       T_ALL = 127 };

/* What a keyword speaks of: scalars' and all others that are not read here as one. */
enum Keyword {
    TYPE = 1, REF, NAME, ANY_OF, ONE_OF, PROPERTIES, REQUIRED, ADDITIONAL, ITEMS, LOW, HIGH, UNIQUE,
    ENUM, CONST, SCALAR, OTHER
};
typedef struct { u32 said[OTHER]; } Said; /* the pieces of the values of keywords, 0 for none */

/* A schema between being read and being made: the pieces of its keywords' values, 0 for none. */
typedef struct {
    u32 types, words, choice, properties, additional, items, low, high;
    u8 is_any, is_sure, is_one, asks; /* is_one: of a choice, whether exactly one has to hold; asks: whether
                                         only Python tells if it has a value */
} Draft;

typedef struct {
    Engine *e;
    const u8 *text;
    const Fixed *fixed;
    Draft *drafts; /* of the forms from `first` on */
    u32 *places;   /* and where they stand */
    u32 first, num_asked;
    u8 has_names, has_references, hides_siblings;
} Reader;

static inline Piece piece_at(const Reader *r, u32 piece) { return r->e->pieces.p[piece]; }
static inline Draft *draft_of(const Reader *r, u32 form) { return r->drafts + (form - r->first); }

static inline int spells(const Reader *r, Piece p, const char *word) {
    return p.length == strlen(word) && !memcmp(r->text + p.at, word, p.length);
}

/* The names in an object, each with the piece of its value behind it. */
#define NAMES(r, object, name)                                                                    \
    for (u32 name = (object) + 1, name##_end = piece_at(r, object).end; name < name##_end;            \
         name = piece_at(r, name + 1).end)
#define VALUES(r, list, value)                                                                    \
    for (u32 value = (list) + 1, value##_end = piece_at(r, list).end; value < value##_end;            \
         value = piece_at(r, value).end)

/* schemas.c */
int read_forms(Reader *r);
enum Keyword keyword_of(const Reader *r, Piece name);
u32 types_of(const Reader *r, u32 stated);
int read_count(const Reader *r, u32 piece, u32 none, u32 *out);

/* scalars.c */
int read_scalars(Reader *r, const Said *s, u32 schema, u32 form);
int ask_whether(Reader *r, u32 form);

#endif
