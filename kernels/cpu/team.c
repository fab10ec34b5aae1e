/* A team of threads that runs programs. Knows operations only by their number.
 *
 * The caller is thread 0. The others sleep between programs (a short spin first, so that calls that
 * follow each other closely wake nobody); within a program threads meet by spinning, and yield the
 * core when a meeting takes long, so that a busy machine gets on.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "ops.h"

#if defined(__x86_64__) || defined(__i386__)
#define PAUSE() __builtin_ia32_pause()
#else
#define PAUSE() ((void)0)
#endif
#define MAX_THREADS 256
#define SPINS 1500 /* some tens of microseconds */

static struct {
    pthread_mutex_t running, lock;
    pthread_cond_t wake;
    atomic_uint generation; /* of programs: a change starts the workers */
    int started;            /* workers that exist, numbered from 1 */
    const rk_op *ops;
    int64_t num_ops;
    int count;
    atomic_int arrived;
    atomic_uint meeting;
    atomic_llong next;
    unsigned seen_at_start[MAX_THREADS];
    rk_thread threads[MAX_THREADS];
} team = {.running = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER,
          .wake = PTHREAD_COND_INITIALIZER};

static void (*const operations[RK_NUM_KINDS])(const int64_t *, rk_thread *) = {
    [RK_NORM] = rk_norm, [RK_ROPE] = rk_rope, [RK_KV_WRITE] = rk_kv_write,
    [RK_SILU_MUL] = rk_silu_mul, [RK_BITMASK] = rk_bitmask, [RK_QUANTIZE] = rk_quantize,
    [RK_LINEAR_PACKED] = rk_linear_packed, [RK_LINEAR_FLOAT] = rk_linear_float,
    [RK_ATTENTION] = rk_attention, [RK_GATHER] = rk_gather,
};

void rk_meet(rk_thread *t) {
    if (t->count == 1) return;
    unsigned meeting = atomic_load(&team.meeting);
    if (atomic_fetch_add(&team.arrived, 1) == t->count - 1) {
        atomic_store(&team.arrived, 0);
        atomic_fetch_add(&team.meeting, 1);
        return;
    }
    for (int spins = 0; atomic_load_explicit(&team.meeting, memory_order_acquire) == meeting;) {
        if (++spins < SPINS) PAUSE();
        else sched_yield();
    }
}

void rk_restart(rk_thread *t) {
    rk_meet(t);
    if (t->index == 0) atomic_store(&team.next, 0);
    rk_meet(t);
}

int64_t rk_next(rk_thread *t) {
    (void)t;
    return atomic_fetch_add(&team.next, 1);
}

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

/* The program is passed by value: a thread may still be leaving its last meeting when the caller
 * has begun the next program. */
static void run_share(rk_thread *t, const rk_op *ops, int64_t num_ops) {
    for (int64_t i = 0; i < num_ops; i++) {
        operations[ops[i].kind](ops[i].arg, t);
        rk_meet(t);
    }
}

static void *work(void *argument) {
    rk_thread *t = argument;
    unsigned seen = team.seen_at_start[t->index];
    for (;;) {
        for (int spins = 0; spins < SPINS && atomic_load(&team.generation) == seen; spins++) PAUSE();
        pthread_mutex_lock(&team.lock);
        while (atomic_load(&team.generation) == seen) pthread_cond_wait(&team.wake, &team.lock);
        seen = atomic_load(&team.generation);
        int takes_part = t->index < team.count;
        const rk_op *ops = team.ops;
        int64_t num_ops = team.num_ops;
        if (takes_part) t->count = team.count;
        pthread_mutex_unlock(&team.lock);
        if (takes_part) run_share(t, ops, num_ops);
    }
    return NULL;
}

/* A forked child has none of its parent's threads. */
static void forget_team(void) {
    pthread_mutex_init(&team.running, NULL);
    pthread_mutex_init(&team.lock, NULL);
    pthread_cond_init(&team.wake, NULL);
    atomic_store(&team.arrived, 0);
    team.started = 0;
}

__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(NULL, NULL, forget_team);
}

/* Start workers until there are `count` threads with the caller; the number there are. */
static int gather_team(int count) {
    while (team.started + 1 < count) {
        int index = team.started + 1;
        pthread_t thread;
        pthread_attr_t detached;
        team.threads[index].index = index;
        team.seen_at_start[index] = atomic_load(&team.generation);
        pthread_attr_init(&detached);
        pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
        int failed = pthread_create(&thread, &detached, work, &team.threads[index]);
        pthread_attr_destroy(&detached);
        if (failed) break; /* fewer threads give the same bits, later */
        team.started = index;
    }
    return team.started + 1 < count ? team.started + 1 : count;
}

/* Run the operations in order on num_threads threads; 0, or the number of the first unknown one. */
int64_t rk_run(const rk_op *ops, int64_t num_ops, int64_t num_threads) {
    for (int64_t i = 0; i < num_ops; i++)
        if (ops[i].kind < 0 || ops[i].kind >= RK_NUM_KINDS) return i + 1;
    int count = num_threads < 1 ? 1 : num_threads > MAX_THREADS ? MAX_THREADS : (int)num_threads;
    pthread_mutex_lock(&team.running);
    pthread_mutex_lock(&team.lock);
    count = gather_team(count);
    team.ops = ops;
    team.num_ops = num_ops;
    team.count = team.threads[0].count = count;
    if (count > 1) {
        atomic_fetch_add(&team.generation, 1);
        pthread_cond_broadcast(&team.wake);
    }
    pthread_mutex_unlock(&team.lock);
    run_share(&team.threads[0], ops, num_ops);
    pthread_mutex_unlock(&team.running);
    return 0;
}

