/* Masks as they are kept: a record is a row of bits and the tokens that differ from it. Most records
   share few rows. */
#include "engine.h"
#include <string.h>

enum { MAX_TOGGLES = 2048 };

/* Four hashes side by side, as one would wait for each of its steps. */
static u32 hash_of(u32 seed, const u32 *words, u32 n) {
    u32 lane[4] = {seed, seed + 1, seed + 2, seed + 3}, i = 0;
    for (; i + 4 <= n; i += 4)
        for (u32 k = 0; k < 4; k++) lane[k] = mix(lane[k], words[i + k]);
    for (; i < n; i++) lane[0] = mix(lane[0], words[i]);
    return mix(mix(lane[0], lane[1]), mix(lane[2], lane[3]));
}

u32 add_row(Engine *e, const u32 *words) {
    u32 n = e->trie.num_words, hash = hash_of(n, words, n);
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
    u32 n = e->hits.n, hash = hash_of(mix(base, n), e->hits.p, n);
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

/* The record of what differs from another in the tokens of `hits`. */
u32 add_difference(Engine *e, u32 record) {
    Record r = e->records.p[record];
    RESERVE(e, e->hits, r.count);
    if (r.count) memcpy(e->hits.p + e->hits.n, e->toggles.p + r.toggles, r.count * sizeof(u32));
    e->hits.n += r.count;
    return finish_record(e, r.base);
}

static void write_record(const Engine *e, u32 record, u32 *row) {
    Record r = e->records.p[record];
    memcpy(row, e->rows.p[r.base], e->trie.num_words * sizeof *row);
    flip(row, e->toggles.p + r.toggles, r.count);
}

/* The toggles of a union with the first record's row, where the others have none: its own, and of the others
   what it does not allow. */
static void join_sparse(Engine *e, const u32 *records, u32 n) {
    u32 most = 0, count = 0, words = e->trie.num_words;
    for (u32 k = 0; k < n; k++) most += e->records.p[records[k]].count;
    RESERVE(e, e->hits, most);
    u32 *hits = e->hits.p, *flipped = borrow(e, 2 * words * sizeof *flipped), *own = flipped + words;
    const u32 *row = e->rows.p[e->records.p[records[0]].base];
    memset(flipped, 0, 2 * words * sizeof *flipped);
    for (u32 k = 0; k < n; k++) {
        Record r = e->records.p[records[k]];
        const u32 *toggle = e->toggles.p + r.toggles;
        flip(k ? own : flipped, toggle, r.count); /* one that is there twice is none */
        for (u32 i = 0; i < r.count; i++) {
            u32 word = toggle[i] >> 5, bit = 1u << (toggle[i] & 31);
            int is_new = !k || (own[word] & ~(row[word] ^ flipped[word]) & bit);
            if (!is_new) continue;
            if (k) flipped[word] ^= bit;
            hits[count++] = toggle[i]; /* twice where it is flipped back */
        }
        for (u32 i = 0; k && i < r.count; i++) own[toggle[i] >> 5] &= ~(1u << (toggle[i] & 31));
    }
    for (u32 i = 0; i < count; i++) {
        u32 *word = &flipped[hits[i] >> 5], bit = 1u << (hits[i] & 31);
        if (*word & bit) hits[e->hits.n++] = hits[i];
        *word &= ~bit;
    }
    give_back(e, flipped);
}

/* The toggles of a union with a row, that of one of the records. */
static void join_rows(Engine *e, const u32 *records, u32 n, const u32 *row) {
    u32 words = e->trie.num_words, *both = borrow(e, 2 * words * sizeof *both);
    write_record(e, records[0], both);
    for (u32 k = 1; k < n; k++) {
        write_record(e, records[k], both + words);
        for (u32 i = 0; i < words; i++) both[i] |= both[words + i];
    }
    for (u32 i = 0; i < words; i++)
        for (u32 bits = both[i] ^ row[i]; bits; bits &= bits - 1)
            PUSH(e, e->hits, i * 32 + (u32)__builtin_ctz(bits));
    give_back(e, both);
}

/* The record of what any of some records allows, whose order changes. */
u32 union_of(Engine *e, u32 *records, u32 n) {
    u32 num_rows = 0; /* the row of a part is most of the union, if any part has one */
    for (u32 k = 0; k < n; k++) {
        if (!e->records.p[records[k]].base) continue;
        u32 first = records[0];
        records[0] = records[k];
        records[k] = first;
        num_rows++;
    }
    u32 base = e->records.p[records[0]].base;
    e->hits.n = 0;
    if (num_rows <= 1) join_sparse(e, records, n);
    else join_rows(e, records, n, e->rows.p[base]);
    return finish_record(e, base);
}
