/* The matrix unit of some x86-64: registers of 16 rows of 64 bytes, and products of two of them.
 *
 *   A   up to 16 rows of inputs                          rows x 64 bytes
 *   B   16 outputs, 4 bytes of each after each other     16 x 64 bytes: 4 columns of 8 bits, 2 of 16
 *   C   sums, int32 or float32                           rows x 16
 *
 * Source: Intel, Architecture Instruction Set Extensions Programming Reference, chapter 3.
 * A thread sets the shape of its registers before it uses them and gives them back after; a process
 * asks its kernel once.
 */
#ifndef RK_AMX_H
#define RK_AMX_H

#include "vec.h"

#if RK_DPBF16 && defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) &&        \
    defined(__AVX512FP16__) && defined(__AVX512VBMI2__) && defined(__linux__) && !defined(RK_VNNI)
#define RK_AMX 1
#else
#define RK_AMX 0
#endif

/* Whether the unit may be used here. The same for the life of a process. */
int rk_amx(void);

#if RK_AMX
/* What is stored before is in memory: GCC's intrinsics tell compilers an address, and not that memory
 * is read. */
#define AMX_WRITTEN(p) __asm__ volatile("" ::"r"(p) : "memory")

typedef struct {
    int rows, bytes; /* of a row */
} amx_size;

INLINE void amx_shapes(const amx_size *sizes) {
    struct {
        uint8_t palette, start, zeros[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shape.bytes[i] = (uint16_t)sizes[i].bytes;
        shape.rows[i] = (uint8_t)sizes[i].rows;
    }
    AMX_WRITTEN(&shape);
    _tile_loadconfig(&shape);
}

/* Registers 0 to 3, C, have `rows` rows of `c_bytes`; 4 and 5, A, as many of `a_bytes`; 6 and 7, B,
 * what meets them: 4 bytes of each output for each 4 of A. */
INLINE void amx_shape(int rows, int a_bytes, int c_bytes) {
    amx_size c = {rows, c_bytes}, a = {rows, a_bytes}, b = {a_bytes / 4, c_bytes};
    amx_shapes((amx_size[8]){c, c, c, c, a, a, b, b});
}

/* To register n from rows `stride` bytes apart. */
#define amx_load(n, from, stride)                                                                  \
    do {                                                                                           \
        AMX_WRITTEN(from);                                                                         \
        _tile_loadd(n, from, stride);                                                              \
    } while (0)
#endif

#endif
