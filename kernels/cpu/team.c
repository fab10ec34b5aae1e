/* A team of threads that runs programs. Of an operation it knows how much work it is, no more.
 *
 * The caller is one of the team and needs nobody: whoever is there takes the next piece of the
 * current step, and a step is over when its pieces are. A thread that sleeps, starts late or has
 * lost its core to another process holds up nothing but a piece it has begun, so a busy machine
 * gets on. Between programs workers sleep, after a short spin for calls that follow closely.
 *
 *   steps      | norm | quantize | linear          | attention, phase 0 | phase 1 | ...
 *   pieces       1      1          1 2 3 4 5 6 7 8   1 2 3 4 5 6          1 2 3
 *   lanes                          a a a a b b b b   a a a b b b
 *
 * Each thread has a lane of pieces that follow each other, so that it can ask for the memory of its
 * next piece ahead; where its lane is empty it takes from the others'.
 *
 * What a late thread may look at is never freed, and carries the number of its program: `left` and
 * `open` of each step are (program << 32 | count), so that nobody takes a piece of another program.
 */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "ops.h"

#if defined(__x86_64__) || defined(__i386__)
#define PAUSE() __builtin_ia32_pause()
#else
#define PAUSE() ((void)0)
#endif
#define MAX_THREADS 256
#define SPINS 1000              /* some tens of microseconds */
#define LANES 8                 /* at most: beyond it threads share them */
#define PIECES_A_THREAD 3       /* so that a slow thread delays the end by little */
#define TURNS_A_THREAD 8        /* at attention, whose items differ in length */
#define PIECE_OF_WORK 40000     /* multiplications or so: a few microseconds */

typedef struct {
    const rk_op *op;
    int64_t phase, pieces;
    atomic_ullong left[LANES]; /* pieces of a lane that nobody has taken */
    atomic_ullong open;        /* pieces that are not done */
} step;

static struct {
    pthread_mutex_t running, lock;
    pthread_cond_t wake;
    atomic_uint program; /* its number: a change starts the workers */
    int started;         /* workers that exist, numbered from 1 */
    int count;           /* threads that the program may use */
    step *steps;
    int64_t num_steps, max_steps;
    atomic_llong current; /* step that the caller is at */
    uint32_t seen_at_start[MAX_THREADS];
    rk_thread threads[MAX_THREADS];
    int index[MAX_THREADS];
} team = {.running = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER,
          .wake = PTHREAD_COND_INITIALIZER};

static void (*const operations[RK_NUM_KINDS])(const int64_t *, rk_thread *) = {
    [RK_NORM] = rk_norm, [RK_ROPE] = rk_rope, [RK_KV_WRITE] = rk_kv_write,
    [RK_SILU_MUL] = rk_silu_mul, [RK_BITMASK] = rk_bitmask, [RK_QUANTIZE] = rk_quantize,
    [RK_LINEAR_PACKED] = rk_linear_packed, [RK_LINEAR_FLOAT] = rk_linear_float,
    [RK_ATTENTION] = rk_attention, [RK_GATHER] = rk_gather,
    [RK_QUANTIZE_WIDE] = rk_quantize_wide, [RK_LINEAR_WIDE] = rk_linear_wide,
    [RK_EMBED] = rk_embed, [RK_SAMPLE] = rk_sample, [RK_STORE_PAGES] = rk_store_pages,
    [RK_STAGE_TILES] = rk_stage_tiles, [RK_LINEAR_TILES] = rk_linear_tiles,
};

void *rk_scratch(rk_thread *t, size_t bytes) {
    if (bytes > t->scratch_size) {
        size_t size = (bytes + 4095) / 4096 * 4096;
        free(t->scratch);
        t->scratch = aligned_alloc(64, size);
        if (!t->scratch) abort(); /* a few hundred KiB: the machine is out of memory */
        t->scratch_size = size;
    }
    return t->scratch;
}

/* Roughly how many multiplications of a product an operation takes as long as, measured at 32 rows;
 * 0: it has nothing to do. */
static int64_t work_of(const rk_op *op) {
    const int64_t *arg = op->arg;
    switch (op->kind) {
    case RK_NORM: return 16 * INT(5) * INT(10) * INT(6);
    case RK_ROPE: return 16 * INT(5) * INT(6) * INT(7);
    case RK_KV_WRITE: return 48 * INT(7) * INT(8) * INT(10);
    case RK_SILU_MUL: return 16 * INT(2) * INT(3);
    case RK_BITMASK: return 8 * INT(2) * INT(3);
    case RK_STAGE_TILES:
    case RK_QUANTIZE:
    case RK_QUANTIZE_WIDE: return 16 * INT(3) * INT(4);
    case RK_LINEAR_PACKED:
    case RK_LINEAR_WIDE: return INT(9) ? (INT(9) + 7) / 2 * INT(5) * INT(10) / 4 : 0;
    case RK_LINEAR_TILES: return INT(9) ? (INT(9) + 40) * INT(5) * INT(10) / 40 : 0;
    case RK_LINEAR_FLOAT: return INT(4) ? (INT(4) + 3) * INT(5) * INT(6) / 4 : 0;
    case RK_STORE_PAGES: return 16 * INT(7) * INT(8) * INT(9) * FEW_PAGE;
    case RK_SAMPLE: return 16 * INT(2) * INT(3);
    case RK_EMBED: return 16 * INT(2) * INT(5);
    default: return INT(3) * INT(4); /* RK_GATHER */
    }
}

static int64_t pieces_of(const rk_op *op, int64_t phase, int count) {
    if (op->kind == RK_ATTENTION) {
        int64_t items = rk_attention_pieces(op->arg, phase), most = (int64_t)count * TURNS_A_THREAD;
        return items < most ? items : most;
    }
    int64_t work = work_of(op), most = (int64_t)count * PIECES_A_THREAD;
    int64_t pieces = work / PIECE_OF_WORK;
    if (count == 1 || pieces < 1) return work > 0;
    return pieces < most ? pieces : most;
}

static int lanes_of(int count) { return count < LANES ? count : LANES; }

/* The first piece of a lane; a piece alone is the caller's, in lane 0. */
static int64_t first_piece(int64_t pieces, int lane, int lanes) {
    return (pieces * lane + lanes - 1) / lanes;
}

/* Run what can be had of a lane; 0 when the program has changed. */
static int take_lane(rk_thread *t, step *s, int lane, uint64_t program, int own) {
    int lanes = lanes_of(t->team);
    unsigned long long left = atomic_load(&s->left[lane]);
    for (;;) {
        if (left >> 32 != program) return 0;
        uint32_t count = (uint32_t)left;
        if (!count) return 1;
        if (!atomic_compare_exchange_weak(&s->left[lane], &left, left - 1)) continue;
        t->piece = first_piece(s->pieces, lane + 1, lanes) - count;
        t->pieces = s->pieces;
        t->goes_on = own && count > 1;
        t->phase = s->phase;
        operations[s->op->kind](s->op->arg, t);
        atomic_fetch_sub(&s->open, 1);
        left = atomic_load(&s->left[lane]);
    }
}

/* Run what can be had of a step; 0 when the program has changed. */
static int take_pieces(rk_thread *t, step *s, uint64_t program) {
    int lanes = lanes_of(t->team);
    for (int i = 0; i < lanes; i++)
        if (!take_lane(t, s, (t->index + i) % lanes, program, !i && t->team <= LANES)) return 0;
    return 1;
}

/* Until all pieces of a step are done; 0 when the program has changed. */
static int wait_for_step(const step *s, uint64_t program) {
    for (int spins = 0;;) {
        unsigned long long open = atomic_load(&s->open);
        if (open >> 32 != program) return 0;
        if (!(uint32_t)open) return 1;
        if (++spins < SPINS) PAUSE();
        else sched_yield();
    }
}

static void take_part(rk_thread *t, step *steps, int64_t from, int64_t num_steps, uint64_t program,
                      int caller) {
    for (int64_t i = from; i < num_steps; i++) {
        if (caller) atomic_store_explicit(&team.current, i, memory_order_relaxed);
        t->run = program << 32 | (uint64_t)(i + 1);
        if (!take_pieces(t, steps + i, program) || !wait_for_step(steps + i, program)) return;
    }
}

static void *work(void *argument) {
    int index = *(int *)argument;
    uint32_t seen = team.seen_at_start[index];
    for (;;) {
        for (int spins = 0; spins < SPINS && atomic_load(&team.program) == seen; spins++) PAUSE();
        pthread_mutex_lock(&team.lock);
        while (atomic_load(&team.program) == seen) pthread_cond_wait(&team.wake, &team.lock);
        seen = atomic_load(&team.program);
        step *steps = team.steps;
        int64_t num_steps = index < team.count ? team.num_steps : 0;
        team.threads[index].index = index, team.threads[index].team = team.count;
        pthread_mutex_unlock(&team.lock);
        int64_t from = atomic_load_explicit(&team.current, memory_order_relaxed);
        take_part(&team.threads[index], steps, from, num_steps, seen, 0);
    }
    return NULL;
}

/* Ask for huge pages under the whole ones in [p, p + bytes): fewer address look-ups for what is read
 * far and wide. A hint: where it is not taken nothing else changes. */
void rk_huge_pages(char *p, int64_t bytes) {
#ifdef MADV_HUGEPAGE
    const uintptr_t size = 2 << 20;
    uintptr_t from = ((uintptr_t)p + size - 1) / size * size, to = ((uintptr_t)p + (uintptr_t)bytes) / size * size;
    if (to > from) (void)madvise((void *)from, to - from, MADV_HUGEPAGE);
#else
    (void)p, (void)bytes;
#endif
}

/* A forked child has none of its parent's threads. */
static void forget_team(void) {
    pthread_mutex_init(&team.running, NULL);
    pthread_mutex_init(&team.lock, NULL);
    pthread_cond_init(&team.wake, NULL);
    team.started = 0;
}

__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(NULL, NULL, forget_team);
}

/* Start workers until there are `count` threads with the caller; fewer give the same bits. */
static void gather_team(int count) {
    while (team.started + 1 < count) {
        int index = team.started + 1;
        pthread_t thread;
        pthread_attr_t detached;
        team.index[index] = index;
        team.seen_at_start[index] = atomic_load(&team.program);
        pthread_attr_init(&detached);
        pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
        int failed = pthread_create(&thread, &detached, work, &team.index[index]);
        pthread_attr_destroy(&detached);
        if (failed) return;
        team.started = index;
    }
}

static int64_t phases_of(const rk_op *op) {
    return op->kind == RK_ATTENTION ? rk_attention_phases(op->arg) : 1;
}

/* Room for the steps. The old array stays: a late worker may still look at it. */
static int make_room(int64_t num_steps) {
    if (num_steps <= team.max_steps) return 1;
    int64_t size = num_steps < 64 ? 64 : 2 * num_steps;
    step *made = calloc((size_t)size, sizeof(step));
    if (!made) return 0;
    team.steps = made;
    team.max_steps = size;
    return 1;
}

static void lay_out(const rk_op *ops, int64_t num_ops, int count, uint64_t program) {
    step *s = team.steps;
    for (int64_t i = 0; i < num_ops; i++)
        for (int64_t phase = 0; phase < phases_of(ops + i); phase++, s++) {
            s->op = ops + i;
            s->phase = phase;
            s->pieces = pieces_of(ops + i, phase, count);
            atomic_store_explicit(&s->open, program << 32 | (uint64_t)s->pieces, memory_order_relaxed);
            for (int lane = 0; lane < lanes_of(count); lane++) {
                int64_t first = first_piece(s->pieces, lane, lanes_of(count));
                int64_t end = first_piece(s->pieces, lane + 1, lanes_of(count));
                atomic_store_explicit(&s->left[lane], program << 32 | (uint64_t)(end - first),
                                      memory_order_release);
            }
        }
}

/* Run the operations in order on up to num_threads threads. 0; or the number of the first unknown
 * operation, from 1; or -1 without memory. */
int64_t rk_run(const rk_op *ops, int64_t num_ops, int64_t num_threads) {
    int64_t num_steps = 0;
    for (int64_t i = 0; i < num_ops; i++) {
        if (ops[i].kind < 0 || ops[i].kind >= RK_NUM_KINDS) return i + 1;
        num_steps += phases_of(ops + i);
    }
    int count = num_threads < 1 ? 1 : num_threads > MAX_THREADS ? MAX_THREADS : (int)num_threads;
    pthread_mutex_lock(&team.running);
    pthread_mutex_lock(&team.lock);
    if (!make_room(num_steps)) {
        pthread_mutex_unlock(&team.lock);
        pthread_mutex_unlock(&team.running);
        return -1;
    }
    gather_team(count);
    uint32_t program = atomic_load(&team.program) + 1;
    lay_out(ops, num_ops, count, program);
    team.num_steps = num_steps;
    team.count = count;
    atomic_store(&team.current, 0);
    atomic_store(&team.program, program);
    if (count > 1) pthread_cond_broadcast(&team.wake);
    step *steps = team.steps;
    pthread_mutex_unlock(&team.lock);
    team.threads[0].team = count;
    take_part(&team.threads[0], steps, 0, num_steps, program, 1);
    pthread_mutex_unlock(&team.running);
    return 0;
}
