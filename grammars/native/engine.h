/* The engine's types: expressions, stacks and states, all interned and named by small integers.

   An expression (node) is a regular or context-free byte expression. A stack is a node still to be
   read and its tail: one stack, or a set of stacks when the text can be read in several ways. A
   state is a set of stacks, no two of the same head: what begins alike is kept once, which keeps an
   ambiguous grammar polynomial. Transitions, masks and derivatives are computed when first asked for
   and kept. Everything is reached by index, because the arrays
   grow; a pointer into one is never held across a call that may add to it. */
#ifndef RADIXGEN_ENGINE_H
#define RADIXGEN_ENGINE_H

#include <setjmp.h>
#include <stdint.h>
#include <stddef.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t i32;

#define NONE 0xFFFFFFFFu

/* ---- growing arrays and hash tables ---------------------------------------------------- */
#define VEC(T) struct { T *p; u32 n, cap; }

typedef struct { u32 hash, id; } Slot;               /* id + 1; 0 is free */
typedef struct { Slot *p; u32 mask, n; } Shard;
enum { NUM_SHARDS = 256 };
typedef struct { Shard shards[NUM_SHARDS]; } Table;  /* by the top bits: one grows at a time, so no
                                                        call pays for all of a large table */

/* ---- nodes ----------------------------------------------------------------------------- */
enum Kind { K_EMPTY, K_EPS, K_SET, K_LIT, K_CAT, K_ALT, K_REP, K_AND, K_NOT, K_WORDS, K_RULE };
enum { EMPTY = 0, EPS = 1, EVERYTHING = 2 };         /* fixed ids */
enum { F_NULLABLE = 1, F_BOOL = 2, F_ALIVE = 4, F_DEAD = 8, F_RULES = 16,
       F_ASKED = 32,                                 /* for a mask within a bounded loop of it */
       F_FAR = 64,                                   /* its shortest string is not looked for at length */
       F_LOST = 128 };                               /* a search has told neither that it has a string, nor
                                                        that it has none */

enum { MAX_EMPTINESS_STATES = 20000 };                /* that a search for some string sees */

typedef struct {
    u8 kind, flags;
    u16 bound;       /* see at_least, + 1; 0: not computed */
    u32 a, b, c, d;  /* SET a=mask; LIT a=offset b=length; CAT a b; ALT, AND a=list b=count;
                        REP a=item b=low c=high (NONE: no bound); NOT a;
                        WORDS a=table b=first c=end d=depth, each word then what its table says; RULE a=rule */
    u32 derived;     /* where its derivatives are, + 1 */
    u32 part;        /* list of its byte classes as mask ids, + 1; 0: not computed */
    u32 slice;       /* for the item of a repeat: its slice of the vocabulary, + 1 */
    u32 cost;        /* bytes of its shortest string, + 1; 0: not computed, or rules are in it */
    u32 mark;        /* of one search over derivatives */
} Node;

typedef struct { u64 w[4]; } Mask;                    /* a set of bytes */
typedef struct { u32 offset, length; } Span;          /* of the byte pool */
/* Spans of sorted, distinct words; `after`: in `lists`, the node behind each of them, or NONE. Words
   that something follows are a prefix code. */
typedef struct { u32 first, count, after; u8 flags; } WordTable;
/* way: where its shortest text is, once asked for, + 1; chain: + 1; place: of a braid, see braids.c */
typedef struct { u32 body, entered, cost, way, chain, place; u8 checked, solved, has_way, is_hook; } Rule;
/* Words in one order, each before a rest of its own: `words` of them, the first of their `rules`, where
   their parts, places and whether they are needed stand in `lists`, behind which word it `closes`.
   `others`: whether other words may come behind all of these. A list has no words: values, `low` to
   `high` of them, with commas between. `forms`: in `lists` too, those of the values of each word and of
   other words, or of the values of a list; NONE where Python gives them. A braid has several orders, its
   `strands`, whose `ends` stand in `lists`, and its words in the `order` of their bytes. */
typedef struct { u32 opening, empty, colon, comma, close, quote, inside; } Marks; /* as of chain.py */
typedef struct {
    u32 rules, count, words, parts, places, needed, closes, others, is_list, low, high, forms;
    u32 strands, ends, order;
    Marks marks;
} Chain;

/* ---- schemas --------------------------------------------------------------------------- */
enum PieceKind { P_OBJECT, P_ARRAY, P_STRING, P_WHOLE, P_NUMBER, P_TRUE, P_FALSE, P_NULL };
typedef struct {     /* a value of a JSON text, before those inside it: names and values in turn */
    u8 kind, plain;  /* plain: a string of printable ASCII without escapes. WHOLE: a number of digits */
    u32 at, length;  /* its text, of a string that between its quotes */
    u32 end;         /* behind the pieces inside */
    u32 form;        /* of a schema, + 1; 0: none yet */
} Piece;
/* The values of a schema, 0 for none: a node; scalars of a text that Python reads, its word + 1; objects
   and arrays, their chains + 1; the values of other forms, where these stand in `lists` + 1. */
typedef struct { u32 node, text, object, array, choice; } SchemaForm;
typedef struct { u32 any, string, number, integer, boolean, null; Marks members, items; } Fixed;

/* ---- stacks and states ----------------------------------------------------------------- */
enum { END = 0, LOOP_END = 1 };                       /* fixed stacks: all read; one item read */
#define IS_SET 0x80000000u                            /* a tail that is a set: its index and this */

typedef struct { u32 head, tail, state, seen, cost; } Stack;
typedef struct { u32 first, count, state; } StackSet; /* sorted members, of `lists` */
typedef struct { u32 first, count, whole; } Merge;    /* stacks as given, and what they merge to */
typedef struct { u32 mask, after, opaque; } Item;     /* opaque: its derivative comes before after */
enum { S_CLOSED = 1, S_ACCEPTING = 2, S_ENDS = 4, S_ENDED = 8, S_SKIPS = 16 }; /* once closed: may end here,
                                                        may be at LOOP_END; soon ends on plain characters:
                                                        closures.c; its text is shorter than its cost */
enum { DEAD = 0 };                                    /* the state without a way on */

typedef struct {
    u32 kernel;              /* its stacks: one, or a set */
    u32 items, num_items;    /* ways on, once closed */
    u32 map;                 /* byte -> class */
    u32 next;                /* class -> state, NONE: not computed */
    u32 record;              /* its mask, + 1 */
    u32 worst;               /* the dearest completion after an allowed token, in bytes, + 1 */
    u32 way;                 /* the next state of a shortest completion, where `byte` leads; 0: not known */
    u32 tokens;              /* tokens of a shortest completion, + 1 */
    u32 most;                /* the most of these after an allowed token, + 1 */
    u32 lane;                /* where most bytes lead (budgets.c), + 1 */
    u32 slice;               /* of what it reads before LOOP_END (heads.c), + 1 */
    u32 mark;                /* of one walk that met it */
    u32 pass;                /* what may surely be read (trie.c), + 1 */
    u16 num_classes;
    u8 flags;
    u8 byte;
} State;

/* ---- masks ----------------------------------------------------------------------------- */
typedef struct { u32 base, toggles, count; } Record;  /* a row, and tokens whose bit differs */

typedef struct {
    u64 groups;                       /* of the bytes in it and below: see trie.c */
    u32 size, depth, first, kids;     /* nodes in it and below; the first of its ids in `order`, of its kids */
    i32 token;                        /* first id that ends there, or -1 */
    u8 byte, height;                  /* height: bytes of the longest way below, 255 at most */
} TrieNode;                           /* all of it together: walks skip about */

typedef struct { u8 *byte; u32 *node; } Kids; /* of the nodes of a trie, those of each together, by their byte */
typedef struct { u32 kid, end, state, other; } Level; /* of a walk: the next kid there, and states on the way */

typedef struct {
    u32 num_nodes, num_tokens, num_words, max_depth, all_bytes; /* each byte of `usable` is a token */
    TrieNode *nodes;                  /* [num_nodes + 1] the last is no node, but has a `first` and `kids` */
    Kids kids;                        /* [num_nodes - 1] */
    u32 *order;                       /* ids by the nodes they end at: those below a node are together */
    u8 *lengths;                      /* of those ids in bytes, 255 at most */
    const u32 *offset;                /* of an id: where its bytes start [num_tokens + 1] */
    const u8 *bytes;
    u8 group[256];                    /* of a byte */
    u32 below[256];                   /* nodes of the tokens that begin with it */
    Mask usable;                      /* bytes that tokens are made of */
} Trie;
#define TOKENS_IN(t, from, to, k)                                                                 \
    for (u32 k##_at = (t)->nodes[from].first, k##_end = (t)->nodes[to].first, k;                  \
         k##_at < k##_end && (k = (t)->order[k##_at], 1); k##_at++)
static inline u32 token_length(const Trie *t, u32 id) { return t->offset[id + 1] - t->offset[id]; }
#define TOKENS_AT(t, node, k) TOKENS_IN(t, node, (node) + 1, k)

typedef struct { u32 node, count : 24, byte : 8; } Exit; /* trie node of the first byte not in the loop */
typedef struct { u32 token, count; } Counted;
typedef struct {
    u64 groups;                                       /* as of a TrieNode, and so are size and height */
    u32 kids, tokens, size;                           /* the first of its kids, and tokens */
    u8 height;
} Rest;
typedef struct {                                      /* what follows a loop, merged into one trie */
    u32 num_nodes;
    Rest *nodes;                                      /* [num_nodes + 1] */
    Kids kids;                                        /* [num_nodes - 1] */
    Counted *tokens;
} Remainders;
typedef struct {                                      /* the same while it is made, in order */
    VEC(u8) byte;
    VEC(u32) depth;
    VEC(u32) first;                                   /* into tokens */
    VEC(Counted) tokens;
} Merged;

typedef struct Slice {                                /* the vocabulary as seen by one loop item */
    u8 usable;
    u32 item, start;                                  /* start: the state that begins an item */
    u32 dearest;                                      /* bytes that may be left of an open item: of the
                                                         states in `lists` too, see dearest_of */
    u32 met, num_met;
    Mask first;
    u32 max_count;
    u32 *by_count;                                    /* tokens inside the loop, by items touched */
    u32 *count_end;                                   /* [max_count + 1] ends in by_count */
    u32 *rows;                                        /* [max_count + 1] row of <= that many, or NONE */
    const struct Slice *counted;                      /* of text before a mark: the slice that its tokens are
                                                         counted in, if any, and */
    u32 row;                                          /* its tokens */
    Exit *exits;                                      /* by their byte */
    u32 exit_end[257];                                /* exits of byte b: from [b] to [b + 1] */
    Remainders *remainders[256];                      /* what follows an exit with that byte */
    u8 merged[256];
    Remainders *outside;                              /* the tokens that do not stay inside */
} Slice;

typedef struct { u64 groups; u32 bytes, stops; } Pass; /* so many bytes of these groups may surely be read;
                                                         stops: and no more of them */
typedef struct { u64 groups; u32 next; } Lane;         /* every byte of these groups leads there */

typedef struct { Counted *p; u32 n, cap; } CountedList;
typedef struct { Exit *p; u32 n, cap; } ExitList;

typedef struct { u32 node, length, bound, from; } Way; /* bytes up to a node, and at least in all; the
                                                         place in `tried` that it comes from */

typedef struct { u32 node, class; } Try;               /* of a search for emptiness: on its path, the next
                                                         class to follow, 0: not entered */

enum Fault { OK, OUT_OF_MEMORY, TOO_LARGE, TOO_AMBIGUOUS, TOO_DEEP, UNDECIDED, CALLBACK, TOO_SLOW };

typedef i32 (*ExpandRule)(u32 rule, i32 check);

typedef struct Engine {
    Trie trie;
    ExpandRule expand;
    jmp_buf *guard;
    u64 bytes, max_bytes, call_bytes;                 /* allocated; its bounds for good, this call */
    u64 fuel;                                         /* work left to this call */
    u32 depth;                                        /* of recursion in C */
    u32 num_lost;                                     /* nodes that were left out as nobody knows of a string */
    u32 patience;                                     /* states that searches may still see for nothing in
                                                         this call, before they are cut short */
    u8 lenient;                                       /* whether such are left out, rather than refused */
    u8 is_strict;                                     /* whether such are searched for again */
    u8 passed_lost;                                   /* whether a search for emptiness came by one */
    u8 lost_cost;                                     /* whether some node has no known length for that */

    VEC(Node) nodes;
    VEC(Mask) masks;
    VEC(u8) pool;
    VEC(u32) lists;
    VEC(Span) words;
    VEC(WordTable) tables;
    VEC(Rule) rules;
    VEC(Chain) chains;
    VEC(SchemaForm) forms;
    VEC(Piece) pieces;                                /* of one text while it is read */
    VEC(Stack) stacks;
    VEC(StackSet) sets;
    VEC(Merge) merges;
    VEC(State) states;
    VEC(Item) items;
    VEC(u8) maps;                                     /* 256 a map */
    VEC(u32) map_masks;                               /* per map: key list, its length, classes */
    VEC(u32) nexts;
    VEC(Record) records;
    VEC(u32) toggles;
    VEC(u32 *) rows;
    VEC(Slice *) slices;
    VEC(Pass) passes;
    VEC(u32) derived;                                 /* derivatives, by node: see derive.c */
    Table node_table, mask_table, stack_table, set_table, merge_table, map_table, row_table, record_table, place_table;

    u32 epoch, visited;                               /* marks and counts of one closure */
    VEC(Try) search;                                  /* of one search for emptiness */
    VEC(u32) seen;
    VEC(u32) waiting;
    VEC(Item) found;
    VEC(u32) after;
    VEC(u32) hits;                                    /* tokens of a walk */
    VEC(u32) unfolded;                                /* stacks that a mask is put together from */
    VEC(u32) asked;                                   /* states whose masks are being made */
    VEC(Level) levels;                                /* of a walk, by depth */
    VEC(u32) path;                                    /* state by depth of a walk */
    VEC(u32) met;                                     /* states of one walk */
    VEC(Level) slice_levels;                          /* a slice may be built within a walk */
    VEC(u32) item_path;
    VEC(u32) loops;                                   /* loops to slice before the next mask, so that
                                                         their counts can meet: see make_and */
    VEC(u32) open_rules;                              /* of one search for costs */
    VEC(Way) ways;                                    /* of one search for a shortest string: a heap */
    VEC(Way) tried;
    u32 solving, mark;
    VEC(u32) route;                                   /* the states of a shortest completion */
    VEC(Lane) lanes;
    u32 plain;                                        /* a plain character, once asked for: closures.c */
    u32 weigh, worst;                                 /* masks.c also asks what completions cost */
    CountedList inside;                               /* of one slice, and of what follows it, while
                                                         they are made */
    ExitList exits, merged;
    Merged rests;
    VEC(void *) borrowed;                             /* memory that a fault gives back: see memory.c */
    u64 steps;                                        /* trie nodes visited, for limits and reports */
} Engine;

/* memory.c */
void fail(Engine *e, enum Fault fault);
void *grow(Engine *e, void *p, u32 *cap, u32 need, size_t width);
void drop(void *p, size_t size);
void *take(Engine *e, size_t size);
void *borrow(Engine *e, size_t size);
void give_back(Engine *e, void *p);
void give_back_from(Engine *e, u32 first);
void table_add(Engine *e, Table *t, u32 hash, u32 id);

static inline void spend(Engine *e, u64 work) {
    if (e->fuel < work) fail(e, TOO_SLOW);
    e->fuel -= work;
}

#define RESERVE(e, v, extra)                                                                      \
    do {                                                                                          \
        if ((v).n + (u32)(extra) > (v).cap)                                                       \
            (v).p = grow((e), (v).p, &(v).cap, (v).n + (u32)(extra), sizeof *(v).p);              \
    } while (0)
#define DROP(v) drop((v).p, (size_t)(v).cap * sizeof *(v).p)
#define PUSH(e, v, x)                                                                             \
    do {                                                                                          \
        RESERVE(e, v, 1);                                                                         \
        (v).p[(v).n++] = (x);                                                                     \
    } while (0)
/* The slots where a hash may be, until a free one. */
static inline const Slot *slot_at(const Table *t, u32 hash, u32 i) {
    static const Slot none = {0, 0};
    const Shard *s = &t->shards[hash >> 24];
    return s->p ? &s->p[i & s->mask] : &none;
}
#define PROBE(t, h, i) for (u32 i = (h); slot_at(&(t), h, i)->id; i++)

static inline u32 mix(u32 h, u32 x) {
    h = (h ^ x) * 0x9E3779B1u;
    return h ^ (h >> 15);
}
static inline int has(const Mask *m, u32 byte) { return (int)(m->w[byte >> 6] >> (byte & 63) & 1); }
static inline int mask_size(const Mask *m) {
    return __builtin_popcountll(m->w[0]) + __builtin_popcountll(m->w[1]) +
           __builtin_popcountll(m->w[2]) + __builtin_popcountll(m->w[3]);
}
static inline u32 lowest(const Mask *m) {
    for (u32 i = 0; i < 4; i++)
        if (m->w[i]) return i * 64 + (u32)__builtin_ctzll(m->w[i]);
    return 256;
}

/* nodes.c */
u32 make_mask(Engine *e, const Mask *m);
u32 make_set(Engine *e, const Mask *m);
u32 make_literal(Engine *e, const u8 *bytes, u32 length);
u32 literal_tail(Engine *e, u32 node, u32 passed);
u32 make_cat(Engine *e, u32 a, u32 b);
u32 make_alt(Engine *e, u32 *parts, u32 count);
u32 make_and(Engine *e, u32 *parts, u32 count);
u32 make_not(Engine *e, u32 item);
u32 make_repeat(Engine *e, u32 item, u32 low, u32 high);
u32 make_words(Engine *e, u32 table, u32 first, u32 end, u32 depth);
u32 add_words(Engine *e, const u8 *bytes, const u32 *lengths, u32 count, const u32 *after);
u32 make_rule(Engine *e, u32 rule);
u32 sort_unique(u32 *ids, u32 n);
u32 words_split(Engine *e, u32 node, u32 *from, u32 *byte);
typedef struct { u32 a, b, low, high; } Counts;
u32 join_counts(Counts *counts, u32 n);

/* chains.c */
u32 add_chain(Engine *e, const u8 *bytes, const u32 *lengths, const u8 *needed, u32 count, u32 others,
              const Marks *marks);
u32 add_list(Engine *e, u32 low, u32 high, const Marks *marks);
void set_forms(Engine *e, u32 rule, const u32 *forms, u32 count);
u32 chain_place(Engine *e, u32 chain, u32 place);
u32 whole_chain(Engine *e, u32 chain);
u32 chain_body(Engine *e, u32 rule);
void from_end(Engine *e, u32 rule, int (*wanted)(const Engine *, u32), u32 (*visit)(Engine *, u32));
int is_in_use(Engine *e, u32 rule);

/* braids.c */
u32 add_braid(Engine *e, const u8 *bytes, const u32 *lengths, const u8 *needed, const u32 *ends, u32 strands,
              u32 others, const Marks *marks);
u32 whole_braid(Engine *e, u32 chain);
u32 braid_body(Engine *e, u32 rule);
u32 braid_way(Engine *e, u32 rule);

/* json.c */
int read_json(Engine *e, const u8 *text, u32 length);

/* forms.c */
u32 read_schema(Engine *e, const u8 *text, u32 length, const Fixed *fixed);
u32 form_value(Engine *e, u32 form);
u32 next_text(const Engine *e, u32 form);
u32 next_wide(const Engine *e, u32 form, u32 names);

/* intervals.c */
u32 interval(Engine *e, const u8 *low, u32 low_length, const u8 *high, u32 high_length, u32 flags);

/* derive.c */
u32 derive(Engine *e, u32 node, u32 byte);
u32 classes_of(Engine *e, u32 node);
int liveness(Engine *e, u32 node, u32 most);
u32 patient(const Engine *e, u32 most);
void lose_patience(Engine *e, u32 states);
int is_alive(Engine *e, u32 node);
u32 at_least(Engine *e, u32 node);
void end_search(Engine *e, int found);
typedef struct { Mask of[256]; u32 n; } Partition;
void partition_start(Partition *p);
void partition_split(Partition *p, const Mask *m);

/* states.c */
u32 push(Engine *e, u32 node, u32 tail);
u32 merge_stacks(Engine *e, u32 *stacks, u32 n);
u32 state_of(Engine *e, u32 tail);
u32 tail_count(const Engine *e, u32 tail);
u32 tail_at(const Engine *e, u32 tail, u32 index);
void close_state(Engine *e, u32 state);
u32 compute_next(Engine *e, u32 state, u32 byte);
u32 behind_literal(Engine *e, u32 state);
u32 within_literal(Engine *e, u32 state, u32 passed);
static inline u32 step(Engine *e, u32 state, u32 byte) {
    if (!(e->states.p[state].flags & S_CLOSED)) close_state(e, state);
    const State *s = &e->states.p[state];
    u32 next = e->nexts.p[s->next + e->maps.p[(size_t)s->map * 256 + byte]];
    return next != NONE ? next : compute_next(e, state, byte);
}

static inline void close_if_open(Engine *e, u32 state) {
    if (!(e->states.p[state].flags & S_CLOSED)) close_state(e, state);
}

/* trie.c */
typedef struct { const u8 *byte; const i32 *depth, *size, *token, *same; } TrieArrays; /* of nodes; same:
                                                         of an id, the next id of equal bytes, or -1 */
int index_trie(Trie *t, TrieArrays given);
void drop_trie(Trie *t);
void index_kids(const u8 *byte, const u32 *depth, u32 n, u32 *path, u32 *first, Kids kids);
enum { NUM_MARKS = 33 };
u64 groups_to(Engine *e, u32 state, u32 next);

/* walks.c */
u32 follow_bytes(Engine *e, u32 state, const u8 *data, u32 length);
int walk(Engine *e, u32 state, u32 node, u64 limit);
int walk_difference(Engine *e, u32 state, u32 other, u64 limit);
void weigh(Engine *e, u32 state);
void add_hits(Engine *e, u32 node, u32 state);

/* masks.c and slices.c */
u32 mask_record(Engine *e, u32 state);
u32 short_record(Engine *e, u32 state);
void slice_loops(Engine *e);
u32 worst_cost(Engine *e, u32 state);

/* heads.c */
u32 head_record(Engine *e, u32 state, int made);
u32 bounded_record(Engine *e, u32 state);

/* records.c */
u32 add_row(Engine *e, const u32 *words);
u32 add_hit_row(Engine *e);
u32 finish_record(Engine *e, u32 base);
u32 add_difference(Engine *e, u32 record);
u32 union_of(Engine *e, u32 *records, u32 n);

/* others.c */
u32 others_record(Engine *e, Node both, u32 tail);

/* closures.c */
u32 closure_record(Engine *e, u32 state);

/* complete.c */
#define NEVER 0x7FFFFFFFu
u32 rule_body(Engine *e, u32 rule, int may_check);
u32 state_cost(Engine *e, u32 state);
u32 stack_cost(Engine *e, u32 tail);
u32 node_cost(Engine *e, u32 node);
u32 some_length(Engine *e, u32 node, u32 most);
u32 spell_shortest(Engine *e, u32 state, u32 *out, u32 room);
u32 tokens_of(Engine *e, u32 state);

/* budgets.c */
u32 restrict_mask(Engine *e, u32 state, u32 *row, u32 budget);

/* masks.c and slices.c again: what is asked of loops */
Slice *slice_of(Engine *e, u32 item);
Mask first_bytes(Engine *e, u32 state);
u32 slice_record(Engine *e, Slice *s, u32 low, u32 high, u32 tail);
int is_code(const Engine *e, u32 item);
Slice *usable_slice(Engine *e, Node loop, u32 tail);
u32 record_unasked(Engine *e, u32 state);
u32 try_outside(Engine *e, Slice *s, u32 state);
u32 outside_record(Engine *e, Slice *s, u32 state);
void keep_exits(Engine *e, Slice *s, const ExitList *exits);
void keep_counts(Engine *e, Slice *s, const Slice *counted);
u32 row_within(Engine *e, Slice *s, u32 count);
u32 dearest_of(Engine *e, Slice *s);
void slice_hits(Engine *e, Slice *s, u32 low, u32 high, u32 tail);

#endif
