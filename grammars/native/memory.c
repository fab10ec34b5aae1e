/* Memory: growing arrays and hash tables, all counted, with one way out when a limit is met. */
#define _GNU_SOURCE /* mremap */
#include "engine.h"
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

/* An array from this size on has pages of its own, which move to a larger place without a copy: no
   mask then pays for copying what a grammar has filled before. */
enum { OWN_PAGES = 1 << 17, MUCH = 4 << 20 };

void fail(Engine *e, enum Fault fault) { longjmp(*e->guard, fault); }

static void charge(Engine *e, size_t more) {
    if (e->bytes + more > e->call_bytes) fail(e, TOO_LARGE);
    e->bytes += more;
}

#ifdef __linux__
static void *resize(void *p, size_t size, size_t wanted) {
    if (wanted < OWN_PAGES) return realloc(p, wanted);
    void *moved = size < OWN_PAGES ? mmap(NULL, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                                   : mremap(p, size, wanted, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED) return NULL;
    if (size < OWN_PAGES) {
        if (size) memcpy(moved, p, size);
        free(p);
    }
    return moved;
}

void drop(void *p, size_t size) {
    if (size < OWN_PAGES) free(p);
    else munmap(p, size);
}
#else
static void *resize(void *p, size_t size, size_t wanted) {
    (void)size;
    return realloc(p, wanted);
}

void drop(void *p, size_t size) {
    (void)size;
    free(p);
}
#endif

/* To twice its size, or a quarter more where that is megabytes: a call may not take much at once, and
   would find no room in an engine that has plenty. */
void *grow(Engine *e, void *p, u32 *cap, u32 need, size_t width) {
    u32 larger = *cap < 32 ? 64 : *cap * width < MUCH ? *cap * 2 : *cap + *cap / 4;
    if (larger < need) larger = need;
    charge(e, (larger - *cap) * width);
    void *moved = resize(p, *cap * width, larger * width);
    if (!moved) fail(e, OUT_OF_MEMORY);
    *cap = larger;
    return moved;
}

void *take(Engine *e, size_t size) {
    charge(e, size);
    void *p = calloc(1, size ? size : 1);
    if (!p) fail(e, OUT_OF_MEMORY);
    return p;
}

/* Memory for one call's own use: what fails in between gives back whatever is still out. The last
   that was borrowed goes back first. */
void *borrow(Engine *e, size_t size) {
    RESERVE(e, e->borrowed, 1);
    void *p = malloc(size ? size : 1);
    if (!p) fail(e, OUT_OF_MEMORY);
    return e->borrowed.p[e->borrowed.n++] = p;
}

void give_back(Engine *e, void *p) {
    e->borrowed.n--;
    free(p);
}

void give_back_from(Engine *e, u32 first) {
    while (e->borrowed.n > first) free(e->borrowed.p[--e->borrowed.n]);
}

enum { FEW_SLOTS = 256 }; /* of a shard, below which it grows by more, and so less often */

static void shard_grow(Engine *e, Shard *t) {
    u32 before = t->p ? t->mask + 1 : 0, size = !before ? 16 : before < FEW_SLOTS ? before * 4 : before * 2;
    charge(e, (size_t)(size - before) * sizeof(Slot));
    Slot *p = calloc(size, sizeof(Slot));
    if (!p) fail(e, OUT_OF_MEMORY);
    for (u32 i = 0; t->p && i <= t->mask; i++) {
        if (!t->p[i].id) continue;
        u32 j = t->p[i].hash & (size - 1);
        while (p[j].id) j = (j + 1) & (size - 1);
        p[j] = t->p[i];
    }
    free(t->p);
    t->p = p;
    t->mask = size - 1;
}

void table_add(Engine *e, Table *table, u32 hash, u32 id) {
    Shard *t = &table->shards[hash >> 24];
    if (!t->p || t->n * 2 > t->mask) shard_grow(e, t);
    u32 i = hash & t->mask;
    while (t->p[i].id) i = (i + 1) & t->mask;
    t->p[i] = (Slot){hash, id + 1};
    t->n++;
}
