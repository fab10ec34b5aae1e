/* Rules whose language depends on the text before them: which of them a state stands before, and
   the state with something else in their place. */
#include "engine.h"

#define EXPORT __attribute__((visibility("default")))

/* The rule that a stack begins with, NONE for any other. */
static u32 leading_rule(const Engine *e, u32 stack) {
    if (stack <= LOOP_END) return NONE;
    Node head = e->nodes.p[e->stacks.p[stack].head];
    return head.kind == K_RULE ? head.a : NONE;
}

/* The rules that a state stands before, at most `room` of them written; returns how many. */
EXPORT i32 rx_heads(const Engine *e, u32 state, u32 *out, u32 room) {
    u32 kernel = e->states.p[state].kernel, n = 0;
    for (u32 i = 0; state != DEAD && i < tail_count(e, kernel); i++) {
        u32 rule = leading_rule(e, tail_at(e, kernel, i));
        if (rule == NONE) continue;
        if (n < room) out[n] = rule;
        n++;
    }
    return (i32)n;
}

static u32 replace(Engine *e, u32 state, const u32 *rules, const u32 *nodes, u32 count) {
    u32 kernel = e->states.p[state].kernel;
    e->after.n = 0;
    for (u32 i = 0; i < tail_count(e, kernel); i++) {
        u32 stack = tail_at(e, kernel, i), rule = leading_rule(e, stack), k = 0;
        while (k < count && rules[k] != rule) k++;
        if (k < count && nodes[k] == EMPTY) continue;
        if (k < count) stack = push(e, nodes[k], e->stacks.p[stack].tail);
        for (u32 c = 0; c < tail_count(e, stack); c++) PUSH(e, e->after, tail_at(e, stack, c));
    }
    return e->after.n ? state_of(e, merge_stacks(e, e->after.p, e->after.n)) : DEAD;
}

/* Let a rule take so many bytes at most, instead of as many as its body. */
EXPORT void rx_rule_cost(Engine *e, u32 rule, u32 cost) {
    enum { SOLVED = 2 };
    e->rules.p[rule].cost = cost < NEVER ? cost : NEVER;
    e->rules.p[rule].solved = SOLVED;
}

/* Say that a rule is a hook. */
EXPORT void rx_rule_hook(Engine *e, u32 rule) { e->rules.p[rule].is_hook = 1; }

/* Let the shortest text of a rule be looked for in a part of it, which `expand` gives. */
EXPORT void rx_rule_way(Engine *e, u32 rule) { e->rules.p[rule].has_way = 1; }

enum { FUEL = 8000000, MAX_GROWTH = 64 << 20 };

/* The state with nodes in the place of the rules that it stands before; minus the fault. */
EXPORT i32 rx_replace(Engine *e, u32 state, const u32 *rules, const u32 *nodes, u32 count) {
    jmp_buf here, *before = e->guard;
    u32 depth = e->depth, borrowed = e->borrowed.n;
    int fault = setjmp(here);
    i32 result = -fault;
    if (!fault) {
        e->guard = &here;
        e->fuel = FUEL;
        e->patience = 2 * MAX_EMPTINESS_STATES;
        e->call_bytes = e->bytes + MAX_GROWTH < e->max_bytes ? e->bytes + MAX_GROWTH : e->max_bytes;
        result = (i32)replace(e, state, rules, nodes, count);
    }
    e->guard = before;
    e->depth = depth;
    give_back_from(e, borrowed);
    return result;
}
