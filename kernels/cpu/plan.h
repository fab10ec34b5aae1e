/* Who attends to what: the work items of one step, the same for every layer of one window. */
#ifndef RK_PLAN_H
#define RK_PLAN_H

#include <stdint.h>

#define SPLIT 256       /* tokens of a split of the KV axis; SPLIT_TOKENS in attention.py */
#define MAX_MEMBERS 32  /* queries that one item handles together */

/* What an item does with the running (max, sum, out) of its members. Without a flag it begins
 * empty, folds its splits in and writes the result. */
enum {
    ITEM_LOAD = 1,   /* begin with the members' saved state */
    ITEM_STORE = 2,  /* save the state instead of writing results */
    ITEM_PARTS = 4,  /* save each split's triple by itself */
    ITEM_MERGE = 8   /* read splits that were saved by themselves */
};

typedef struct {
    int32_t flags, row;          /* row: whose page table */
    int32_t first_split, end_split;
    int32_t first_member, end_member;
    int32_t part;                /* index of the first saved split's triple */
} rk_item;

typedef struct {
    int32_t token, position;     /* index among the queries; place in the sequence */
} rk_member;

typedef struct {
    int64_t num_rows, num_tokens, page_size, kv_heads, group, dim, num_parts;
    int32_t *kv_indptr, *kv_indices, *lengths;
    rk_item *items;
    int64_t num_items, max_items;
    rk_member *members;
    int64_t num_members, max_members;
    int64_t *phase_ends;         /* items are ordered by phase */
    int64_t num_phases;
    float *state, *parts;        /* triples: dim outs, max, sum */
} rk_plan;

#endif
