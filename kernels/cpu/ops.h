/* What an operation is: a kind and its arguments, run in pieces by a team of threads.
 *
 * A program is an array of operations; one begins when all pieces of the one before are done. An
 * operation's pieces share its output among them: which thread runs which, and how many there are,
 * changes no bit. Arguments are 64-bit: a pointer, a count, or a double's bits. Each operation's file
 * lists them.
 */
#ifndef RK_OPS_H
#define RK_OPS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define RK_ARGS 31

typedef struct {
    int64_t kind;
    int64_t arg[RK_ARGS];
} rk_op;

typedef struct {
    int index, team;       /* which thread of how many */
    int64_t piece, pieces; /* which piece of the operation to run, of how many */
    int64_t goes_on;       /* 1: with the next piece, unless another thread is faster */
    int64_t phase;         /* of an operation that takes several turns */
    uint64_t run;          /* number of this operation's run: no other has it; never 0 */
    uint64_t scratch_of;   /* the run whose data the scratch holds for its further pieces, or 0 */
    void *scratch;         /* this thread's memory, kept between calls */
    size_t scratch_size;
} rk_thread;

enum {
    RK_NORM, RK_ROPE, RK_KV_WRITE, RK_SILU_MUL, RK_BITMASK,
    RK_QUANTIZE, RK_LINEAR_PACKED, RK_LINEAR_FLOAT, RK_ATTENTION, RK_GATHER,
    RK_QUANTIZE_WIDE, RK_LINEAR_WIDE, RK_EMBED, RK_SAMPLE, RK_STORE_PAGES,
    RK_STAGE_TILES, RK_LINEAR_TILES, RK_NUM_KINDS
};

/* Elements of KV pages; an int8 row ends with its float32 scale. See kv_types.py. */
enum { PAGES_F32, PAGES_BF16, PAGES_F16, PAGES_I8 };

static inline int64_t rk_row_bytes(int64_t dim, int type) {
    return type == PAGES_I8 ? dim + 4 : dim * (type == PAGES_F32 ? 4 : 2);
}

/* Pages of few bits: see kernels/kivi.py. */
#define FEW_PAGE 32  /* tokens, and channels of a value's group */
#define MAX_DIM 1024 /* of a head */

static inline int64_t rk_few_bytes(int64_t dim, int bits) { /* of a page's keys of one head */
    return FEW_PAGE * dim * bits / 8 + 4 * dim;
}

void rk_norm(const int64_t *arg, rk_thread *t);
void rk_rope(const int64_t *arg, rk_thread *t);
void rk_kv_write(const int64_t *arg, rk_thread *t);
void rk_silu_mul(const int64_t *arg, rk_thread *t);
void rk_bitmask(const int64_t *arg, rk_thread *t);
void rk_quantize(const int64_t *arg, rk_thread *t);
void rk_linear_packed(const int64_t *arg, rk_thread *t);
void rk_linear_float(const int64_t *arg, rk_thread *t);
void rk_attention(const int64_t *arg, rk_thread *t);
void rk_gather(const int64_t *arg, rk_thread *t);
void rk_quantize_wide(const int64_t *arg, rk_thread *t);
void rk_linear_wide(const int64_t *arg, rk_thread *t);
void rk_embed(const int64_t *arg, rk_thread *t);
void rk_sample(const int64_t *arg, rk_thread *t);
void rk_store_pages(const int64_t *arg, rk_thread *t);
void rk_stage_tiles(const int64_t *arg, rk_thread *t);
void rk_linear_tiles(const int64_t *arg, rk_thread *t);

void *rk_scratch(rk_thread *t, size_t bytes); /* 64-byte aligned, valid until the next call */
int64_t rk_attention_phases(const int64_t *arg);
int64_t rk_attention_pieces(const int64_t *arg, int64_t phase);

#define PTR(type, i) ((type *)(intptr_t)arg[i])
#define INT(i) (arg[i])

static inline float rk_float(int64_t bits) {
    double x;
    memcpy(&x, &bits, 8);
    return (float)x;
}
#define FLOAT(i) rk_float(arg[i])

/* This piece's share [*first, *last) of n things. */
static inline void rk_share(const rk_thread *t, int64_t n, int64_t *first, int64_t *last) {
    *first = n * t->piece / t->pieces;
    *last = n * (t->piece + 1) / t->pieces;
}

/* Where that ends what this thread is likely to run: memory before it may be asked for. */
static inline int64_t rk_share_ahead(const rk_thread *t, int64_t n) {
    return n * (t->piece + 1 + t->goes_on) / t->pieces;
}

#endif
