/* 16 registers of 16 words, rows to columns. */
#ifndef RK_TRANSPOSE_H
#define RK_TRANSPOSE_H

#include "vec.h"

INLINE void transpose16(__m512i *v) {
    __m512i a[16], b[16];
    UNROLL
    for (int i = 0; i < 16; i += 2) { /* words of two rows in turn */
        a[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
    UNROLL
    for (int i = 0; i < 16; i += 4) { /* of four rows: the column 4 * lane + j in b[i + j] */
        b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    UNROLL
    for (int j = 0; j < 4; j++) {
        __m512i even = _mm512_shuffle_i32x4(b[j], b[4 + j], 0x88);      /* lanes 0 2 of both */
        __m512i odd = _mm512_shuffle_i32x4(b[j], b[4 + j], 0xdd);       /* lanes 1 3 */
        __m512i even_2 = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0x88);
        __m512i odd_2 = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0xdd);
        v[j] = _mm512_shuffle_i32x4(even, even_2, 0x88);
        v[8 + j] = _mm512_shuffle_i32x4(even, even_2, 0xdd);
        v[4 + j] = _mm512_shuffle_i32x4(odd, odd_2, 0x88);
        v[12 + j] = _mm512_shuffle_i32x4(odd, odd_2, 0xdd);
    }
}

#endif
