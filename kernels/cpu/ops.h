/* What an operation is: a kind and its arguments, run by a team of threads.
 *
 * A program is an array of operations; all threads run each one's share and meet before the next.
 * Arguments are 64-bit: a pointer, a count, or a double's bits. Each operation's file lists them.
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
    int index, count; /* this thread and how many there are */
    void *scratch;    /* its own memory, kept between calls */
    size_t scratch_size;
} rk_thread;

enum {
    RK_NORM, RK_ROPE, RK_KV_WRITE, RK_SILU_MUL, RK_BITMASK,
    RK_QUANTIZE, RK_LINEAR_PACKED, RK_LINEAR_FLOAT, RK_ATTENTION, RK_GATHER, RK_NUM_KINDS
};

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

void rk_meet(rk_thread *t);                    /* wait for every thread of the team */
void *rk_scratch(rk_thread *t, size_t bytes);  /* 64-byte aligned, valid until the next call */
int64_t rk_next(rk_thread *t);                 /* 0, 1, 2 ... handed out to whoever asks first */
void rk_restart(rk_thread *t);                 /* all threads: meet, then rk_next begins at 0 */

#define PTR(type, i) ((type *)(intptr_t)arg[i])
#define INT(i) (arg[i])

static inline float rk_float(int64_t bits) {
    double x;
    memcpy(&x, &bits, 8);
    return (float)x;
}
#define FLOAT(i) rk_float(arg[i])

/* This thread's share [*first, *last) of n things. */
static inline void rk_share(const rk_thread *t, int64_t n, int64_t *first, int64_t *last) {
    *first = n * t->index / t->count;
    *last = n * (t->index + 1) / t->count;
}

#endif
