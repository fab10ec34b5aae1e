/* What Python calls. Every function that can fail returns minus the fault. */
#include "engine.h"
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* Run the rest of the function under a guard; a fault returns from it. Guards nest, because a rule
   is expanded by a call back into Python, which adds nodes. */
enum { FUEL = 8000000, MAX_GROWTH = 64 << 20 };

/* What one call may do: so much work, and so many more bytes. */
static void start_call(Engine *e) {
    e->weigh = e->is_strict = 0; /* a call that failed may have left them */
    e->asked.n = 0;
    e->fuel = FUEL;
    e->patience = 2 * MAX_EMPTINESS_STATES;
    e->call_bytes = e->bytes + MAX_GROWTH < e->max_bytes ? e->bytes + MAX_GROWTH : e->max_bytes;
}

/* Run the rest of the function under a guard; a fault returns from it. Guards nest, because a rule
   is expanded by a call back into Python, which adds nodes. */
#define ENTER(e)                                                                                  \
    jmp_buf guard_here, *guard_before = (e)->guard;                                               \
    u32 depth_before = (e)->depth, borrowed_before = (e)->borrowed.n;                             \
    int fault = setjmp(guard_here);                                                               \
    if (fault) {                                                                                  \
        (e)->guard = guard_before;                                                                \
        (e)->depth = depth_before;                                                                \
        give_back_from((e), borrowed_before);                                                     \
        end_search((e), -1);                                                                      \
        return -fault;                                                                            \
    }                                                                                             \
    if (!guard_before) start_call(e);                                                             \
    (e)->guard = &guard_here
#define LEAVE(e, value)                                                                           \
    do {                                                                                          \
        i32 left = (i32)(value);                                                                  \
        (e)->guard = guard_before;                                                                \
        return left;                                                                              \
    } while (0)

static void add_fixed(Engine *e) {
    for (u32 byte = 0; byte < 256; byte++) {
        Mask m = {{0}};
        m.w[byte >> 6] = 1ull << (byte & 63);
        make_mask(e, &m);
    }
    PUSH(e, e->nodes, ((Node){.kind = K_EMPTY}));
    PUSH(e, e->nodes, ((Node){.kind = K_EPS, .flags = F_NULLABLE}));
    PUSH(e, e->nodes, ((Node){.kind = K_NOT, .flags = F_BOOL | F_NULLABLE | F_ALIVE, .a = EMPTY}));
    PUSH(e, e->stacks, ((Stack){EMPTY, 0, NONE, 0, 1}));
    PUSH(e, e->stacks, ((Stack){EMPTY, 0, NONE, 0, 1}));
    RESERVE(e, e->maps, 256);
    memset(e->maps.p, 0, 256);
    e->maps.n = 256;
    u32 none[3] = {0, NONE, 1};
    for (u32 i = 0; i < 3; i++) PUSH(e, e->map_masks, none[i]);
    PUSH(e, e->nexts, DEAD);
    PUSH(e, e->states, ((State){.num_classes = 1, .flags = S_CLOSED}));
    PUSH(e, e->rows, take(e, e->trie.num_words * sizeof(u32)));
}

static i32 prepare(Engine *e) {
    ENTER(e);
    add_fixed(e);
    LEAVE(e, 0);
}

EXPORT Engine *rx_new(u32 num_nodes, u32 num_tokens, const u8 *byte, const i32 *depth,
                      const i32 *size, const i32 *token, const i32 *same, const u32 *offset,
                      const u8 *bytes, ExpandRule expand, u64 max_bytes) {
    Engine *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    e->trie = (Trie){.num_nodes = num_nodes, .num_tokens = num_tokens, .num_words = (num_tokens + 31) / 32,
                     .offset = offset, .bytes = bytes};
    u32 single_bytes = 0;
    for (u32 i = 0; i < num_nodes; i++) {
        single_bytes += depth[i] == 1 && token[i] >= 0;
        if (i) e->trie.usable.w[byte[i] >> 6] |= 1ull << (byte[i] & 63);
    }
    e->trie.all_bytes = single_bytes == (u32)mask_size(&e->trie.usable);
    e->expand = expand;
    e->max_bytes = max_bytes;
    if (index_trie(&e->trie, (TrieArrays){byte, depth, size, token, same}) && prepare(e) == 0) return e;
    drop_trie(&e->trie);
    free(e);
    return NULL;
}

static void free_slice(Slice *s) {
    for (u32 byte = 0; byte < 256; byte++) free(s->remainders[byte]);
    free(s->outside);
    free(s->by_count), free(s->count_end), free(s->rows), free(s->exits);
    free(s);
}

EXPORT void rx_free(Engine *e) {
    for (u32 i = 0; i < e->rows.n; i++) free(e->rows.p[i]);
    for (u32 i = 0; i < e->slices.n; i++) free_slice(e->slices.p[i]);
    DROP(e->nodes), DROP(e->masks), DROP(e->pool), DROP(e->lists), DROP(e->words), DROP(e->tables),
    DROP(e->rules), DROP(e->chains), DROP(e->forms), DROP(e->pieces), DROP(e->stacks), DROP(e->states), DROP(e->sets), DROP(e->merges),
    DROP(e->items), DROP(e->maps), DROP(e->map_masks), DROP(e->nexts), DROP(e->records), DROP(e->rows),
    DROP(e->toggles), DROP(e->slices), DROP(e->passes), DROP(e->inside), DROP(e->exits), DROP(e->merged), DROP(e->borrowed), DROP(e->waiting), DROP(e->found), DROP(e->after), DROP(e->hits),
    DROP(e->unfolded), DROP(e->path), DROP(e->levels), DROP(e->met), DROP(e->asked),
    DROP(e->slice_levels), DROP(e->item_path), DROP(e->loops), DROP(e->open_rules), DROP(e->ways), DROP(e->tried), DROP(e->route), DROP(e->lanes), DROP(e->search),
    DROP(e->seen), DROP(e->derived), DROP(e->rests.byte), DROP(e->rests.depth), DROP(e->rests.first),
    DROP(e->rests.tokens);
    Table *tables[] = {&e->node_table, &e->mask_table, &e->stack_table,      &e->set_table,
                       &e->merge_table, &e->map_table, &e->row_table,
                       &e->record_table, &e->place_table};
    for (u32 i = 0; i < sizeof tables / sizeof *tables; i++)
        for (u32 k = 0; k < NUM_SHARDS; k++) free(tables[i]->shards[k].p);
    drop_trie(&e->trie);
    free(e);
}

/* ---- expressions: a postfix program --------------------------------------------------------- */

enum Op { O_EMPTY, O_EPS, O_SET, O_LIT, O_CAT, O_ALT, O_REP, O_AND, O_NOT, O_RULE, O_NODE, O_WORDS, O_SWITCH, O_SAVE, O_CHECK, O_ALIVE, O_SAVED };

typedef struct { u32 *stack, n; const i32 *at; const u8 *data; u32 *saved, num_saved; int lenient; } Program;

static u32 build_many(Engine *e, Program *p, enum Op op, u32 count) {
    u32 *parts = p->stack + p->n - count, node = EPS;
    p->n -= count;
    if (op == O_ALT) return make_alt(e, parts, count);
    for (u32 i = 0; op == O_AND && i < count; i++)
        if (e->nodes.p[parts[i]].kind == K_REP) PUSH(e, e->loops, e->nodes.p[parts[i]].a);
    if (op == O_AND) return make_and(e, parts, count);
    while (count) node = make_cat(e, parts[--count], node);
    return node;
}

static u32 build_one(Engine *e, Program *p, enum Op op) {
    const i32 *a = p->at;
    Mask mask;
    switch (op) {
    case O_EPS: return EPS;
    case O_SET:
        p->at += 1;
        memcpy(&mask, p->data + a[0], sizeof mask);
        return make_set(e, &mask);
    case O_LIT: p->at += 2; return make_literal(e, p->data + a[0], (u32)a[1]);
    case O_CAT:
    case O_ALT:
    case O_AND: p->at += 1; return build_many(e, p, op, (u32)a[0]);
    case O_REP:
        p->at += 2;
        return make_repeat(e, p->stack[--p->n], (u32)a[0], a[1] < 0 ? NONE : (u32)a[1]);
    case O_NOT: return make_not(e, p->stack[--p->n]);
    case O_RULE: p->at += 1; return make_rule(e, (u32)a[0]);
    case O_NODE: p->at += 1; return (u32)a[0];
    case O_SAVED: p->at += 1; return p->saved[a[0]];
    case O_WORDS:
        p->at += 2 + a[1];
        return add_words(e, p->data + a[0], (const u32 *)(a + 2), (u32)a[1], NULL);
    case O_SWITCH: /* what follows the words lies on the stack, in their order */
        p->at += 2 + a[1];
        p->n -= (u32)a[1];
        return add_words(e, p->data + a[0], (const u32 *)(a + 2), (u32)a[1], p->stack + p->n);
    default: return EMPTY;
    }
}

static u32 run_program(Engine *e, Program p, const i32 *end) {
    while (p.at < end) {
        enum Op op = (enum Op)*p.at++;
        if (op == O_SAVE) {
            p.saved[p.num_saved++] = p.stack[p.n - 1];
            continue;
        }
        if (op == O_CHECK) {
            u32 node = p.stack[p.n - 1], most = patient(e, MAX_EMPTINESS_STATES);
            int found = p.lenient ? liveness(e, node, most) : is_alive(e, node);
            if (found <= 0) p.stack[p.n - 1] = EMPTY;
            if (found < 0) e->num_lost++;
            continue;
        }
        if (op == O_ALIVE) { /* proven elsewhere */
            e->nodes.p[p.stack[p.n - 1]].flags |= F_ALIVE;
            continue;
        }
        u32 node = build_one(e, &p, op); /* moves p.n */
        p.stack[p.n++] = node;
    }
    return p.stack[0];
}

/* Build the node of a program of `length` integers, with a stack of as many; nodes marked by
   O_SAVE are written to `saved`. */
EXPORT i32 rx_build(Engine *e, const i32 *program, u32 length, const u8 *data, u32 *stack,
                    u32 *saved) {
    ENTER(e);
    int lenient = guard_before || e->lenient; /* within a text, which would have to fail */
    LEAVE(e, run_program(e, (Program){stack, 0, program, data, saved, 0, lenient}, program + length));
}

/* Returns the node of the new rule. */
EXPORT i32 rx_add_rule(Engine *e) {
    ENTER(e);
    RESERVE(e, e->rules, 1);
    u32 node = make_rule(e, e->rules.n);
    PUSH(e, e->rules, ((Rule){.body = NONE, .cost = NEVER}));
    LEAVE(e, node);
}

/* Returns the first of the rules of the chain; see chains.c. */
EXPORT i32 rx_add_chain(Engine *e, const u8 *bytes, const u32 *lengths, const u8 *needed, u32 count,
                        u32 others, const Marks *marks) {
    ENTER(e);
    LEAVE(e, add_chain(e, bytes, lengths, needed, count, others, marks));
}

/* Returns the first rule of the braid; see braids.c. */
EXPORT i32 rx_add_braid(Engine *e, const u8 *bytes, const u32 *lengths, const u8 *needed, const u32 *ends,
                        u32 strands, u32 others, const Marks *marks) {
    ENTER(e);
    LEAVE(e, add_braid(e, bytes, lengths, needed, ends, strands, others, marks));
}

/* Returns the rule of the list; `high` NONE: no bound. */
EXPORT i32 rx_add_list(Engine *e, u32 low, u32 high, const Marks *marks) {
    ENTER(e);
    LEAVE(e, add_list(e, low, high, marks));
}

/* Returns the form of a schema's text, + 1, or 0 where it is not plain: see schemas.c. */
EXPORT i32 rx_schema(Engine *e, const u8 *text, u32 length, const Fixed *fixed) {
    ENTER(e);
    LEAVE(e, read_schema(e, text, length, fixed));
}

/* Where the number of rules stands, with those that a call added before its fault. */
EXPORT const u32 *rx_num_rules(const Engine *e) { return &e->rules.n; }

/* Returns the node of a form. */
EXPORT i32 rx_form(Engine *e, u32 form) {
    ENTER(e);
    LEAVE(e, form_value(e, form));
}

/* The first form from this one on with a text that is not read yet; -1 for none. */
EXPORT i32 rx_next_text(const Engine *e, u32 form) {
    u32 found = next_text(e, form);
    return found < e->forms.n ? (i32)found : -1;
}

/* The first form from this one on of objects with so many names; -1 for none. */
EXPORT i32 rx_next_wide(const Engine *e, u32 form, u32 names) {
    u32 found = next_wide(e, form, names);
    return found < e->forms.n ? (i32)found : -1;
}

/* The text of a form that has one, which Python reads. */
EXPORT const u8 *rx_form_text(const Engine *e, u32 form) {
    return e->pool.p + e->words.p[e->forms.p[form].text - 1].offset;
}

/* Returns the node of an interval, see intervals.c. */
EXPORT i32 rx_interval(Engine *e, const u8 *low, u32 low_length, const u8 *high, u32 high_length, u32 flags) {
    ENTER(e);
    LEAVE(e, interval(e, low, low_length, high, high_length, flags));
}

/* The node of what may stand at a place of a chain; of the whole chain at a place below 0. */
EXPORT i32 rx_chain_place(Engine *e, u32 first_rule, i32 place) {
    ENTER(e);
    u32 chain = e->rules.p[first_rule].chain - 1;
    LEAVE(e, place < 0 ? whole_chain(e, chain) : chain_place(e, chain, (u32)place));
}

/* Expand a rule before a text gets there; returns the node of its body. */
EXPORT i32 rx_expand(Engine *e, u32 rule) {
    ENTER(e);
    u32 body = e->rules.p[rule].chain && !is_in_use(e, rule) ? EMPTY : rule_body(e, rule, 0);
    slice_loops(e);
    LEAVE(e, body);
}

EXPORT void rx_set_body(Engine *e, u32 rule, u32 node) { e->rules.p[rule].body = node; }

/* Have what nobody knows a string of left out of nodes, or refused. */
EXPORT void rx_lenient(Engine *e, u32 lenient) { e->lenient = (u8)lenient; }

/* Where the number of nodes is kept that were left out so. */
EXPORT const u32 *rx_num_lost(const Engine *e) { return &e->num_lost; }

/* ---- states ----------------------------------------------------------------------------------- */

EXPORT i32 rx_start(Engine *e, u32 node) {
    ENTER(e);
    u32 state = state_of(e, push(e, node, END));
    slice_loops(e); /* now, as the first mask that asks for loops would wait for all of them */
    LEAVE(e, state);
}

EXPORT i32 rx_bytes(Engine *e, u32 state, const u8 *data, u32 length) {
    ENTER(e);
    LEAVE(e, follow_bytes(e, state, data, length));
}

EXPORT i32 rx_token(Engine *e, u32 state, u32 token) {
    u32 from = e->trie.offset[token], end = e->trie.offset[token + 1];
    return from == end ? DEAD : rx_bytes(e, state, e->trie.bytes + from, end - from);
}

static int stands_before_hook(const Engine *e, u32 state) {
    u32 kernel = e->states.p[state].kernel;
    for (u32 i = 0; i < tail_count(e, kernel); i++) {
        u32 stack = tail_at(e, kernel, i);
        Node head = e->nodes.p[stack > LOOP_END ? e->stacks.p[stack].head : EMPTY];
        if (head.kind == K_RULE && e->rules.p[head.a].is_hook) return 1;
    }
    return 0;
}

/* Of each token the first of its cuts, if any, behind which a state stands before a hook; its
   cuts are from first[i] to first[i + 1]. `out` gets pairs of an index and a cut. */
static u32 passing(Engine *e, u32 state, u32 n, const u32 *tokens, const u32 *first, const u32 *cuts,
                   u32 *out) {
    u32 found = 0;
    for (u32 i = 0; i < n; i++) {
        const u8 *data = e->trie.bytes + e->trie.offset[tokens[i]];
        u32 here = state, from = 0;
        for (u32 k = first[i]; k < first[i + 1] && here != DEAD; from = cuts[k++]) {
            here = follow_bytes(e, here, data + from, cuts[k] - from);
            if (here == DEAD || !stands_before_hook(e, here)) continue;
            out[2 * found] = i;
            out[2 * found++ + 1] = cuts[k];
            break;
        }
    }
    return found;
}

EXPORT i32 rx_passing(Engine *e, u32 state, u32 n, const u32 *tokens, const u32 *first,
                      const u32 *cuts, u32 *out) {
    ENTER(e);
    LEAVE(e, passing(e, state, n, tokens, first, cuts, out));
}

EXPORT i32 rx_accepting(Engine *e, u32 state) {
    ENTER(e);
    if (!(e->states.p[state].flags & S_CLOSED)) close_state(e, state);
    LEAVE(e, (e->states.p[state].flags & S_ACCEPTING) != 0);
}

/* The bytes that may come next, 256 bits. */
EXPORT i32 rx_next(Engine *e, u32 state, u64 *bits) {
    ENTER(e);
    Mask all = first_bytes(e, state);
    memset(bits, 0, 4 * sizeof *bits);
    for (u32 w = 0; w < 4; w++)
        for (u64 b = all.w[w]; b; b &= b - 1)
            if (step(e, state, w * 64 + (u32)__builtin_ctzll(b)) != DEAD) bits[w] |= b & -b;
    LEAVE(e, 0);
}

/* The state after the only byte that may come next, DEAD where there is none or a choice. */
static u32 only_next(Engine *e, u32 state, u8 *byte) {
    Mask all = first_bytes(e, state);
    u32 next = DEAD;
    for (u32 w = 0; w < 4; w++)
        for (u64 b = all.w[w]; b; b &= b - 1) {
            u32 one = w * 64 + (u32)__builtin_ctzll(b), after = step(e, state, one);
            if (after != DEAD && next != DEAD) return DEAD;
            if (after == DEAD) continue;
            next = after;
            *byte = (u8)one;
        }
    return e->states.p[state].flags & S_ACCEPTING ? DEAD : next;
}

static u32 forced(Engine *e, u32 state, u8 *out, u32 room) {
    u32 n = 0;
    while (n < room && (state = only_next(e, state, out + n)) != DEAD) n++;
    return n;
}

/* The bytes that every completion begins with, at most `room` of them; returns how many. */
EXPORT i32 rx_forced(Engine *e, u32 state, u8 *out, u32 room) {
    ENTER(e);
    LEAVE(e, forced(e, state, out, room));
}

/* ---- masks -------------------------------------------------------------------------------------- */

static void write_mask(Engine *e, u32 state, u32 *row, const u32 *ends, u32 num_ends) {
    slice_loops(e);
    u32 record = mask_record(e, state);
    Record r = e->records.p[record];
    memcpy(row, e->rows.p[r.base], e->trie.num_words * sizeof *row);
    const u32 *toggle = e->toggles.p + r.toggles;
    for (u32 i = 0; i < r.count; i++) row[toggle[i] >> 5] ^= 1u << (toggle[i] & 31);
    if (e->states.p[state].flags & S_ACCEPTING)
        for (u32 i = 0; i < num_ends; i++) row[ends[i] >> 5] |= 1u << (ends[i] & 31);
}

/* Write the mask of a state; with `ends`, the end tokens where the text may end. */
EXPORT i32 rx_mask(Engine *e, u32 state, u32 *row, const u32 *ends, u32 num_ends) {
    ENTER(e);
    write_mask(e, state, row, ends, num_ends);
    LEAVE(e, 0);
}

/* Take from a mask the tokens after which more than `budget` - 1 tokens are needed. */
EXPORT i32 rx_restrict(Engine *e, u32 state, u32 *row, u32 budget) {
    ENTER(e);
    LEAVE(e, restrict_mask(e, state, row, budget));
}

/* Masks of many states, each within its budget unless that is negative; `results` gets 0 or minus
 * the fault of each, `grown` the bytes it took. */
EXPORT void rx_masks(Engine *e, u32 n, const u32 *states, u32 *const *rows, const int64_t *budgets,
                     const u32 *ends, u32 num_ends, i32 *results, u64 *grown) {
    for (u32 i = 0; i < n; i++) {
        u64 before = e->bytes;
        results[i] = rx_mask(e, states[i], rows[i], ends, num_ends);
        if (!results[i] && budgets[i] >= 0) {
            u32 most = budgets[i] > UINT32_MAX ? UINT32_MAX : (u32)budgets[i];
            i32 struck = rx_restrict(e, states[i], rows[i], most);
            results[i] = struck < 0 ? struck : 0;
        }
        grown[i] = e->bytes - before;
    }
}

/* Where the number of bytes held is kept. */
EXPORT const u64 *rx_bytes_held(const Engine *e) { return &e->bytes; }

/* ---- completions -------------------------------------------------------------------------------- */

/* The tokens of a short completion, at most `room` of them written; returns how many it takes. */
EXPORT i32 rx_shortest(Engine *e, u32 state, u32 *out, u32 room) {
    ENTER(e);
    u32 found = spell_shortest(e, state, out, room);
    if (found == NEVER && e->lost_cost) fail(e, UNDECIDED);
    LEAVE(e, found);
}

/* Sizes for reports: bytes, nodes, stacks, states, rows, records, trie nodes visited. */
EXPORT void rx_sizes(const Engine *e, u64 *out) {
    u64 all[] = {e->bytes, e->nodes.n, e->stacks.n, e->states.n, e->rows.n, e->records.n, e->steps};
    memcpy(out, all, sizeof all);
}
