/* What the products with packed weights ask of linear_amx.c. */
#ifndef RK_LINEAR_AMX_H
#define RK_LINEAR_AMX_H

#include "amx.h"
#include "packed.h"

/* How many of the first of `rows` rows to leave to rk_amx_linear, with groups of so many columns; 0
 * where there is no AMX. */
int64_t rk_amx_rows(int64_t rows, int64_t group);

/* The n-th 16 outputs of the first rows, without AMX. */
typedef void rk_tile_by_vectors(const int64_t *arg, int64_t n, int64_t rows);

/* A piece of a product for these rows; arguments as in linear_packed.c and linear_wide.c.
 * `by_vectors` takes outputs with scales that are not finite: 8-bit inputs need it. */
void rk_amx_linear(const int64_t *arg, rk_thread *t, int x_bits, rk_tile_by_vectors *by_vectors);

#endif
