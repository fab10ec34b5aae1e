/* Plain schemas while they are read (schemas.c) and made (forms.c). */
#ifndef RADIXGEN_SCHEMAS_H
#define RADIXGEN_SCHEMAS_H

#include "engine.h"

enum { MAX_FORMS = 20000, MAX_NAMES = 512 };
enum { T_OBJECT = 1, T_ARRAY = 2, T_STRING = 4, T_NUMBER = 8, T_INTEGER = 16, T_BOOLEAN = 32, T_NULL = 64,
       T_ALL = 127 };

/* A schema between being read and being made: the pieces of its keywords' values, 0 for none. */
typedef struct {
    u32 types, words, properties, additional, items, low, high;
    u8 is_any, is_sure;
} Draft;

typedef struct {
    Engine *e;
    const u8 *text;
    const Fixed *fixed;
    Draft *drafts; /* of the forms from `first` on */
    u32 *places;   /* and where they stand */
    u32 first;
    u8 has_names, has_references;
} Reader;

static inline Piece piece_at(const Reader *r, u32 piece) { return r->e->pieces.p[piece]; }
static inline Draft *draft_of(const Reader *r, u32 form) { return r->drafts + (form - r->first); }

/* The names in an object, each with the piece of its value behind it. */
#define NAMES(r, object, name)                                                                    \
    for (u32 name = (object) + 1, name##_end = piece_at(r, object).end; name < name##_end;            \
         name = piece_at(r, name + 1).end)
#define VALUES(r, list, value)                                                                    \
    for (u32 value = (list) + 1, value##_end = piece_at(r, list).end; value < value##_end;            \
         value = piece_at(r, value).end)

int read_forms(Reader *r);

#endif
