/* What walks through tries have in common: the way to the next kid, and what is seen of states on the way. */
#ifndef RADIXGEN_WALKS_H
#define RADIXGEN_WALKS_H

#include "engine.h"

enum { NUM_LOOPS = 32, LOOK_FOR_LOOP = 64, LOOK_FOR_STAY = 8, LOOK_FOR_PASS = 64 }; /* look once so many
                                                         nodes stayed in a state, or were met in it */
typedef struct {                                      /* states that a walk often stayed in, each where
                                                         its number says, and groups that stay there */
    u32 state[NUM_LOOPS], stays[NUM_LOOPS];
    u64 groups[NUM_LOOPS];
    u8 noted[NUM_LOOPS];
} Loops;
typedef struct { u32 state[NUM_LOOPS], n[NUM_LOOPS], stays[NUM_LOOPS]; } Visits; /* of a walk, likewise */

/* Of some kids by their bytes, from one on, the first that a closed state leads on to, or may. */
static inline u32 next_kid(const Engine *e, u32 state, const u8 *bytes, u32 kid, u32 end) {
    const State *s = &e->states.p[state];
    const u8 *map = e->maps.p + (size_t)s->map * 256;
    const u32 *next = e->nexts.p + s->next;
    while (kid < end && next[map[bytes[kid]]] == DEAD) kid++;
    return kid;
}

/* The node of the kid with a byte, 0 without one. */
static inline u32 kid_with(const Kids *kids, u32 first, u32 end, u8 byte) {
    for (; first < end; first++)
        if (kids->byte[first] == byte) return kids->node[first];
    return 0;
}

/* The literal that a state reads that was not closed, else the empty one. */
static inline Span literal_of(const Engine *e, u32 state) {
    State s = e->states.p[state];
    if (s.flags & S_CLOSED || s.kernel & IS_SET || s.kernel <= LOOP_END) return (Span){0, 0};
    Node head = e->nodes.p[e->stacks.p[s.kernel].head];
    return head.kind == K_LIT ? (Span){head.a, head.b} : (Span){0, 0};
}

u64 look_for_groups(Engine *e, Loops *loops, u32 state);

/* The groups of which every byte stays in a state, once a walk stayed there often enough to look. */
static inline u64 groups_in(Engine *e, Loops *l, u32 state) {
    u32 i = state % NUM_LOOPS;
    if (l->state[i] == state && l->stays[i] >= LOOK_FOR_LOOP) return l->groups[i];
    return look_for_groups(e, l, state);
}

/* What may surely be read from a state, once a walk was there often enough to look, which a byte led on
   from to another. */
Pass look_for_pass(Engine *e, Visits *visits, u32 state, u32 next, int far);
static inline Pass pass_of(Engine *e, Visits *visits, u32 state, u32 next, int far) {
    u32 known = e->states.p[state].pass;
    return known ? e->passes.p[known - 1] : look_for_pass(e, visits, state, next, far);
}

#endif
