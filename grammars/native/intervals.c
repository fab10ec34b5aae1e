/* Intervals of numbers: their texts, decimals and scientific notation, compared with the ends digit by
   digit. See json_decimals.py, whose expressions these are: built here, one takes microseconds. */
#include "engine.h"
#include <string.h>

enum { MAX_EXPONENT = 307, MAX_SPELLED = 4096 };
enum { LOW_OPEN = 1, HIGH_OPEN = 2, WHOLE = 4, PLAIN_ONLY = 8 };

typedef struct { const u8 *p; u32 n; } Text;        /* p NULL: no end, or one that the digits have left */
typedef struct { Text whole, behind; int negative, open; } End; /* whole.p NULL: none */
typedef struct { u32 digit, nonzero, digits, fraction; int low_open, high_open, whole; } Form;

static const Text nothing = {NULL, 0};

static Text rest_of(Text t, u32 n) { return (Text){t.p + n, t.n - n}; }
static Text after_digit(Text t) { return t.n ? rest_of(t, 1) : t; }

static u32 byte_between(Engine *e, u32 low, u32 high) {
    Mask m = {{0}};
    for (u32 byte = low; byte <= high; byte++) m.w[0] |= 1ull << byte;
    return make_set(e, &m);
}

static u32 either(Engine *e, u32 a, u32 b) {
    u32 parts[2] = {a, b};
    return make_alt(e, parts, 2);
}

static u32 text_node(Engine *e, const char *text) { return make_literal(e, (const u8 *)text, (u32)strlen(text)); }

/* Decimals with a fraction, or none where they are `whole`. */
static Form form_of(Engine *e, int low_open, int high_open, int whole) {
    Form f = {.low_open = low_open, .high_open = high_open, .whole = whole};
    f.digit = byte_between(e, '0', '9');
    f.nonzero = byte_between(e, '1', '9');
    f.digits = make_repeat(e, f.digit, 0, NONE);
    f.fraction = whole ? EPS : either(e, EPS, make_cat(e, text_node(e, "."), make_repeat(e, f.digit, 1, NONE)));
    return f;
}

static int is_zero(Text t) {
    for (u32 i = 0; i < t.n; i++)
        if (t.p[i] != '0') return 0;
    return 1;
}

/* ---- decimals: comparison digit by digit ------------------------------------------------------- */

/* What follows a digit: `left` more before the point; below 0 behind it. */
static u32 after_one(Engine *e, const Form *f, Text low, Text high, i32 left);

/* One digit: strictly between those of the ends, or at one of them, and what follows. */
static u32 choose(Engine *e, const Form *f, Text low, Text high, i32 left, int zero) {
    u32 ways[4], n = 0, a = low.n ? low.p[0] : '0', b = high.p ? (high.n ? high.p[0] : '0') : '9';
    u32 first = zero ? '0' : '1', from = low.p ? a + 1 : first, to = high.p ? b : '9' + 1; /* before `to` */
    Text at_low = after_digit(low), at_high = after_digit(high);
    if (from < first) from = first;
    if (low.p && high.p && a == b) {
        if (a >= first) ways[n++] = make_cat(e, byte_between(e, a, a), after_one(e, f, at_low, at_high, left));
    } else {
        if (low.p && a >= first && (!high.p || a < b))
            ways[n++] = make_cat(e, byte_between(e, a, a), after_one(e, f, at_low, nothing, left));
        if (high.p && b >= first && (!low.p || a < b))
            ways[n++] = make_cat(e, byte_between(e, b, b), after_one(e, f, nothing, at_high, left));
    }
    if (from < to) ways[n++] = make_cat(e, byte_between(e, from, to - 1), after_one(e, f, nothing, nothing, left));
    return make_alt(e, ways, n);
}

static int may_end(const Form *f, Text low, Text high) {
    if (low.p && (!is_zero(low) || f->low_open)) return 0;
    return !high.p || !is_zero(high) || !f->high_open;
}

/* Digits behind the point; at least one if `must`. */
static u32 behind_point(Engine *e, const Form *f, Text low, Text high, int must) {
    if (low.p && !low.n && !f->low_open) low = nothing;
    if (!low.p && !high.p) return make_repeat(e, f->digit, must ? 1 : 0, NONE);
    if (!low.n && !high.n) { /* no end that is compared with has digits left */
        if (!low.p) return f->high_open ? EMPTY : make_repeat(e, byte_between(e, '0', '0'), must ? 1 : 0, NONE);
        u32 zeros = make_repeat(e, byte_between(e, '0', '0'), 0, NONE);
        return high.p ? EMPTY : make_cat(e, zeros, make_cat(e, f->nonzero, f->digits));
    }
    u32 end = !must && may_end(f, low, high) ? EPS : EMPTY;
    return either(e, end, choose(e, f, low, high, -1, 1));
}

static u32 digits_left(Engine *e, const Form *f, Text low, Text high, i32 left, int zero) {
    if (!low.p && !high.p && zero) return make_cat(e, make_repeat(e, f->digit, (u32)left, (u32)left), f->fraction);
    if (left > 0) return choose(e, f, low, high, left - 1, zero);
    u32 end = may_end(f, low, high) ? EPS : EMPTY;
    return f->whole ? end : either(e, end, make_cat(e, text_node(e, "."), behind_point(e, f, low, high, 1)));
}

static u32 after_one(Engine *e, const Form *f, Text low, Text high, i32 left) {
    if (++e->depth > MAX_SPELLED * 2) fail(e, TOO_DEEP);
    spend(e, 4);
    u32 node = left >= 0 ? digits_left(e, f, low, high, left, 1) : behind_point(e, f, low, high, 0);
    e->depth--;
    return node;
}

/* Add one to the digits of a whole number in `room`, or take one away, which is over 0 then. */
static Text count_on(u8 *room, Text t, int up) {
    room[0] = '0';
    memcpy(room + 1, t.p, t.n);
    u32 i = t.n;
    for (; room[i] == (up ? '9' : '0'); i--) room[i] = up ? '0' : '9';
    room[i] = (u8)(up ? room[i] + 1 : room[i] - 1);
    Text found = {room, t.n + 1};
    while (found.n > 1 && found.p[0] == '0') found = rest_of(found, 1);
    return found;
}

static int compare_text(Text a, Text b) {
    int order = memcmp(a.p, b.p, a.n < b.n ? a.n : b.n);
    return order ? order : (a.n > b.n) - (a.n < b.n);
}

static int compare_ends(const End *a, const End *b) {
    if (a->whole.n != b->whole.n) return a->whole.n > b->whole.n ? 1 : -1;
    int order = compare_text(a->whole, b->whole);
    return order ? order : compare_text(a->behind, b->behind);
}

/* Decimals from `low` to `high`, both not negative. */
static u32 decimals(Engine *e, End low, End high, int whole) {
    u8 rooms[2][MAX_SPELLED + 2], tight[2][MAX_SPELLED];
    if (whole) { /* the integers next to the ends, within */
        if (low.behind.n || low.open) low.whole = count_on(rooms[0], low.whole, 1);
        if (high.whole.p && !high.behind.n && high.open) {
            if (is_zero(high.whole)) return EMPTY;
            high.whole = count_on(rooms[1], high.whole, 0);
        }
        low.behind.n = high.behind.n = 0;
        low.open = high.open = 0;
        if (high.whole.p && compare_ends(&low, &high) > 0) return EMPTY;
    }
    Form f = form_of(e, low.open, high.open, whole);
    const End *ends[2] = {&low, &high};
    Text digits[2];
    for (u32 i = 0; i < 2; i++) {
        Text a = ends[i]->whole, b = ends[i]->behind;
        digits[i] = (Text){a.p ? tight[i] : NULL, a.n + b.n};
        if (a.p) memcpy(tight[i], a.p, a.n);
        if (a.p && b.n) memcpy(tight[i] + a.n, b.p, b.n);
    }
    u32 shortest = low.whole.n, longest = high.whole.p ? high.whole.n : shortest, ways[3], n = 0;
    for (u32 length = shortest;; length = longest) {
        Text tight_low = length == shortest ? digits[0] : nothing;
        Text tight_high = high.whole.p && length == longest ? digits[1] : nothing;
        ways[n++] = digits_left(e, &f, tight_low, tight_high, (i32)length, length == 1);
        if (length == longest) break;
    }
    if (!high.whole.p || longest >= shortest + 2) { /* lengths in between */
        u32 more = make_repeat(e, f.digit, shortest, high.whole.p ? longest - 2 : NONE);
        ways[n++] = make_cat(e, f.nonzero, make_cat(e, more, f.fraction));
    }
    return make_alt(e, ways, n);
}

/* ---- scientific notation ------------------------------------------------------------------------ */

static End whole_end(u8 *room, u32 value) {
    u32 n = 0, scale = 1;
    while (value / scale >= 10) scale *= 10;
    for (; scale; scale /= 10) room[n++] = (u8)('0' + value / scale % 10);
    return (End){.whole = {room, n}, .behind = {room, 0}};
}

static u32 count_range(Engine *e, u32 first, u32 last) {
    u8 rooms[2][16];
    return decimals(e, whole_end(rooms[0], first), whole_end(rooms[1], last), 1);
}

static u32 counts(Engine *e, u32 first, u32 last) {
    u32 exact = count_range(e, first, last);
    if (first > 9) return exact;
    return either(e, exact, make_cat(e, text_node(e, "0"), count_range(e, first, last < 9 ? last : 9)));
}

/* `e` and an exponent from `first` to `last`, in one or two digits at least. */
static u32 exponents(Engine *e, i32 first, i32 last) {
    Mask m = {{0, 1ull << ('e' - 64) | 1ull << ('E' - 64), 0, 0}};
    u32 ways[2], n = 0;
    if (last >= 0) {
        u32 plus = either(e, EPS, text_node(e, "+"));
        ways[n++] = make_cat(e, plus, counts(e, first > 0 ? (u32)first : 0, (u32)last));
    }
    if (first < 0) ways[n++] = make_cat(e, text_node(e, "-"), counts(e, last < 0 ? (u32)-last : 1, (u32)-first));
    return make_cat(e, make_set(e, &m), make_alt(e, ways, n));
}

static u32 leading_zeros(Text t) {
    u32 n = 0;
    while (n < t.n && t.p[n] == '0') n++;
    return n;
}

static int is_none_or_zero(const End *end) { return !end->whole.p || (is_zero(end->whole) && !end->behind.n); }

/* x such that 10**x <= value < 10**(x + 1), of one over 0. */
static i32 exponent_of(const End *end) {
    if (!is_zero(end->whole)) return (i32)end->whole.n - 1;
    return -(i32)leading_zeros(end->behind) - 1;
}

/* An end as its first digit, and the others behind the point. */
static End mantissa_of(u8 *room, const End *end) {
    Text all = {room, end->whole.n + end->behind.n};
    memcpy(room, end->whole.p, end->whole.n);
    if (end->behind.n) memcpy(room + end->whole.n, end->behind.p, end->behind.n);
    all = rest_of(all, leading_zeros(all));
    while (all.n > 1 && all.p[all.n - 1] == '0') all.n--;
    return (End){.whole = {all.p, 1}, .behind = rest_of(all, 1), .open = end->open};
}

static u32 mantissas(Engine *e, i32 exponent, const End *low, const End *high) {
    u8 rooms[2][MAX_SPELLED];
    End a = {.whole = {(const u8 *)"1", 1}, .behind = {(const u8 *)"", 0}};
    End b = {.whole = {(const u8 *)"10", 2}, .behind = {(const u8 *)"", 0}, .open = 1};
    if (exponent > MAX_EXPONENT || exponent < -MAX_EXPONENT) return EMPTY;
    if (low) a = mantissa_of(rooms[0], low);
    if (high) b = mantissa_of(rooms[1], high);
    return make_cat(e, decimals(e, a, b, 0), exponents(e, exponent, exponent));
}

/* One digit from 1 to 9, a fraction, an exponent: positive numbers between the ends. */
static u32 scientific(Engine *e, const End *low, const End *high) {
    int has_low = !is_none_or_zero(low), has_high = !is_none_or_zero(high);
    i32 first = has_low ? exponent_of(low) : -MAX_EXPONENT;
    i32 last = has_high ? exponent_of(high) : high->whole.p ? first - 1 : MAX_EXPONENT;
    if (has_low && has_high && first == last) return mantissas(e, first, low, high);
    u32 ways[3], n = 0;
    if (has_low) ways[n++] = mantissas(e, first, low, NULL);
    if (has_high) ways[n++] = mantissas(e, last, NULL, high);
    i32 from = first + has_low, to = last - has_high;
    if (from <= to) {
        Form f = form_of(e, 0, 0, 0);
        ways[n++] = make_cat(e, f.nonzero, make_cat(e, f.fraction, exponents(e, from, to)));
    }
    return make_alt(e, ways, n);
}

/* ---- both signs ---------------------------------------------------------------------------------- */

static End read_end(const u8 *text, u32 length, int open) {
    End end = {.open = open};
    if (!length) return end;
    u32 at = text[0] == '-', point = at;
    while (point < length && text[point] != '.') point++;
    end.whole = (Text){text + at, point - at};
    end.behind = point < length ? (Text){text + point + 1, length - point - 1} : (Text){text, 0};
    end.negative = at && !is_none_or_zero(&end);
    return end;
}

/* The texts of the numbers between two ends that are not negative; EMPTY if there are none. */
static u32 not_negative(Engine *e, End low, End high, u32 flags, int is_minus) {
    if (!low.whole.p || low.negative) low = (End){.whole = {(const u8 *)"0", 1}, .behind = {(const u8 *)"", 0}};
    if (high.negative) return EMPTY;
    if (high.whole.p) {
        int order = compare_ends(&high, &low);
        if (order < 0 || (!order && (low.open || high.open))) return EMPTY;
    }
    End from = low;
    if (is_minus && flags & WHOLE && is_none_or_zero(&low)) from.open = 1; /* no -0 among integers */
    u32 node = decimals(e, from, high, (flags & WHOLE) != 0);
    if (flags & PLAIN_ONLY) return node;
    return either(e, node, scientific(e, &from, &high));
}

static End mirrored(End end) {
    end.negative = !end.negative && !is_none_or_zero(&end);
    return end;
}

/* The texts of an interval; an end without digits is none. */
u32 interval(Engine *e, const u8 *low, u32 low_length, const u8 *high, u32 high_length, u32 flags) {
    if (low_length > MAX_SPELLED || high_length > MAX_SPELLED) fail(e, TOO_LARGE);
    End a = read_end(low, low_length, (flags & LOW_OPEN) != 0), b = read_end(high, high_length, (flags & HIGH_OPEN) != 0);
    u32 above = not_negative(e, a, b, flags, 0), below = not_negative(e, mirrored(b), mirrored(a), flags, 1);
    return either(e, above, make_cat(e, text_node(e, "-"), below));
}
