/* Masks as they are kept: a record is a row of bits and the tokens that differ from it. Most records
   share few rows. */
#include "engine.h"
#include <string.h>

enum { MAX_TOGGLES = 2048 };

u32 add_row(Engine *e, const u32 *words) {
    u32 n = e->trie.num_words, hash = n;
    for (u32 i = 0; i < n; i++) hash = mix(hash, words[i]);
    PROBE(e->row_table, hash, i) {
        Slot s = *slot_at(&e->row_table, hash, i);
        if (s.hash == hash && !memcmp(e->rows.p[s.id - 1], words, n * sizeof *words)) return s.id - 1;
    }
    u32 *copy = take(e, n * sizeof *words), id = e->rows.n;
    memcpy(copy, words, n * sizeof *words);
    PUSH(e, e->rows, copy);
    table_add(e, &e->row_table, hash, id);
    return id;
}

static void flip(u32 *row, const u32 *tokens, u32 n) {
    for (u32 i = 0; i < n; i++) row[tokens[i] >> 5] ^= 1u << (tokens[i] & 31);
}

/* Another row with the bits of `hits` flipped. */
static u32 add_flipped(Engine *e, u32 base) {
    u32 bytes = e->trie.num_words * (u32)sizeof(u32), *row = borrow(e, bytes);
    memcpy(row, e->rows.p[base], bytes);
    flip(row, e->hits.p, e->hits.n);
    u32 id = add_row(e, row);
    give_back(e, row);
    return id;
}

/* The row of the tokens in `hits`. */
u32 add_hit_row(Engine *e) { return add_flipped(e, 0); }

/* A record of equal content that is there already, or NONE: most states share theirs. */
static u32 find_record(const Engine *e, u32 base, u32 hash) {
    PROBE(e->record_table, hash, i) {
        Slot s = *slot_at(&e->record_table, hash, i);
        Record r = e->records.p[s.id - 1];
        if (s.hash == hash && r.base == base && r.count == e->hits.n &&
            (!r.count || !memcmp(e->toggles.p + r.toggles, e->hits.p, r.count * sizeof(u32))))
            return s.id - 1;
    }
    return NONE;
}

/* The record of row `base` with the bits of `hits` flipped; where these are many, it has a row to itself. */
u32 finish_record(Engine *e, u32 base) {
    if (e->hits.n > MAX_TOGGLES) {
        base = add_flipped(e, base);
        e->hits.n = 0;
    }
    u32 hash = mix(base, e->hits.n), n = e->hits.n;
    for (u32 i = 0; i < n; i++) hash = mix(hash, e->hits.p[i]);
    u32 found = find_record(e, base, hash);
    if (found != NONE) return found;
    Record r = {base, e->toggles.n, n};
    RESERVE(e, e->toggles, n);
    if (n) memcpy(e->toggles.p + r.toggles, e->hits.p, n * sizeof(u32));
    e->toggles.n += n;
    u32 id = e->records.n;
    PUSH(e, e->records, r);
    table_add(e, &e->record_table, hash, id);
    return id;
}

static void write_record(const Engine *e, u32 record, u32 *row) {
    Record r = e->records.p[record];
    memcpy(row, e->rows.p[r.base], e->trie.num_words * sizeof *row);
    flip(row, e->toggles.p + r.toggles, r.count);
}

u32 union_of(Engine *e, const u32 *records, u32 n) {
    u32 words = e->trie.num_words, *both = borrow(e, 2 * words * sizeof *both);
    write_record(e, records[0], both);
    for (u32 k = 1; k < n; k++) {
        write_record(e, records[k], both + words);
        for (u32 i = 0; i < words; i++) both[i] |= both[words + i];
    }
    u32 base = 0; /* the row of a part is most of the union, if any part has one */
    for (u32 k = 0; k < n; k++)
        if (e->records.p[records[k]].base) base = e->records.p[records[k]].base;
    const u32 *row = e->rows.p[base];
    e->hits.n = 0;
    for (u32 i = 0; i < words; i++)
        for (u32 bits = both[i] ^ row[i]; bits; bits &= bits - 1)
            PUSH(e, e->hits, i * 32 + (u32)__builtin_ctz(bits));
    give_back(e, both);
    return finish_record(e, base);
}
