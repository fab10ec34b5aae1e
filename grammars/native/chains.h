/* What chains (chains.c) and braids of them (braids.c) share. */
#ifndef RADIXGEN_CHAINS_H
#define RADIXGEN_CHAINS_H

#include "engine.h"

enum { STRIDE = 8 };             /* words that each place of a long chain lists itself, or asks for at once */
enum { ASK_VALUE = 3, ASK_OPEN, ASK_PART, ASK_END, ASK_OTHER, ASK_BITS = 3 };
#define UNKNOWN NONE
#define OPEN (NONE - 1)          /* a word before the rule of what is behind it */
#define ASKED (NONE - 2)         /* a word of which only its part, or its value, tells whether it may come */

u32 ask(Engine *e, Chain c, u32 what, u32 index);
u32 fresh_list(Engine *e, u32 count);
void add_chain_words(Engine *e, Chain *c, const u8 *bytes, const u32 *lengths, const u8 *needed);
void open_stride(Engine *e, Chain c, u32 first);
u32 other_words(Engine *e, Chain c, u32 behind);

#endif
