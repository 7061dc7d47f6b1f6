/* Products of matrices of doubles.  Every sum is in a fixed order.  Multiplications and additions are rounded separately, so all
 * levels return the same bits, the baseline too.  Rows of B and out have a multiple of WIDE numbers.  A vector is as long as a register:
 * compilers keep the parts of longer ones in memory, which makes products many times slower. */
#if LEVEL == 3
#define REGISTER 8
#elif LEVEL == 2
#define REGISTER 4
#else
#define REGISTER 2
#endif
typedef double wide __attribute__((vector_size(REGISTER * sizeof(double))));
typedef int64_t wide_int __attribute__((vector_size(REGISTER * sizeof(int64_t))));

INLINE wide load_wide(const double *p)
{
    wide x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* Lanes of x where `chosen` is -1, and of y where it is 0. */
INLINE wide choose(wide_int chosen, wide x, wide y)
{
    return (wide)(((wide_int)x & chosen) | ((wide_int)y & ~chosen));
}

/* out (n, m) = A (n, k) B (k, m), a tile of four rows by COLUMNS vectors; each sum is in the order of k. */
#define PRODUCT_TILE(ROWS, COLUMNS)                                                                                       \
    {                                                                                                                     \
        wide sum[ROWS][COLUMNS];                                                                                          \
        for (int r = 0; r < ROWS; r++)                                                                                    \
            for (int c = 0; c < COLUMNS; c++)                                                                             \
                sum[r][c] = (wide){0};                                                                                    \
        for (int64_t l = 0; l < k; l++)                                                                                   \
            UNROLL for (int c = 0; c < COLUMNS; c++) {                                                                    \
                const wide b = load_wide(B + l * m + j + c * REGISTER);                                                   \
                UNROLL for (int r = 0; r < ROWS; r++)                                                                     \
                    sum[r][c] += A[(i + r) * k + l] * b;                                                                  \
            }                                                                                                             \
        for (int r = 0; r < ROWS; r++)                                                                                    \
            for (int c = 0; c < COLUMNS; c++)                                                                             \
                memcpy(out + (i + r) * m + j + c * REGISTER, &sum[r][c], sizeof(wide));                                   \
    }

static void dense_product(const double *A, const double *B, int64_t n, int64_t k, int64_t m, double *out)
{
    for (int64_t j = 0; j < m;) {
        const int two = m - j >= 2 * REGISTER;
        int64_t i = 0;
        for (; i + 4 <= n; i += 4) {
            if (two)
                PRODUCT_TILE(4, 2)
            else
                PRODUCT_TILE(4, 1)
        }
        for (; i < n; i++) {
            if (two)
                PRODUCT_TILE(1, 2)
            else
                PRODUCT_TILE(1, 1)
        }
        j += two ? 2 * REGISTER : REGISTER;
    }
}

/* out (k, m) = A' (k, n) B (n, m); each sum is in the order of the n rows. */
#define CROSS_TILE(ROWS, COLUMNS)                                                                                         \
    {                                                                                                                     \
        wide sum[ROWS][COLUMNS];                                                                                          \
        for (int r = 0; r < ROWS; r++)                                                                                    \
            for (int c = 0; c < COLUMNS; c++)                                                                             \
                sum[r][c] = (wide){0};                                                                                    \
        for (int64_t i = 0; i < n; i++)                                                                                   \
            UNROLL for (int c = 0; c < COLUMNS; c++) {                                                                    \
                const wide b = load_wide(B + i * m + j + c * REGISTER);                                                   \
                UNROLL for (int r = 0; r < ROWS; r++)                                                                     \
                    sum[r][c] += A[i * k + l + r] * b;                                                                    \
            }                                                                                                             \
        for (int r = 0; r < ROWS; r++)                                                                                    \
            for (int c = 0; c < COLUMNS; c++)                                                                             \
                memcpy(out + (l + r) * m + j + c * REGISTER, &sum[r][c], sizeof(wide));                                   \
    }

static void dense_cross(const double *A, const double *B, int64_t n, int64_t k, int64_t m, double *out)
{
    for (int64_t j = 0; j < m;) {
        const int two = m - j >= 2 * REGISTER;
        int64_t l = 0;
        for (; l + 4 <= k; l += 4) {
            if (two)
                CROSS_TILE(4, 2)
            else
                CROSS_TILE(4, 1)
        }
        for (; l < k; l++) {
            if (two)
                CROSS_TILE(1, 2)
            else
                CROSS_TILE(1, 1)
        }
        j += two ? 2 * REGISTER : REGISTER;
    }
}

/* out (m) = sum over the entries of one sparse row of count B[index]; in the order of the entries. */
#define SPARSE_TILE(COLUMNS)                                                                                              \
    {                                                                                                                     \
        wide sum[COLUMNS];                                                                                                \
        for (int c = 0; c < COLUMNS; c++)                                                                                 \
            sum[c] = (wide){0};                                                                                           \
        for (int64_t q = 0; q < n_entries; q++) {                                                                         \
            const double *row = B + (int64_t)index[q] * m + j;                                                            \
            const double y = count[q];                                                                                    \
            UNROLL for (int c = 0; c < COLUMNS; c++)                                                                      \
                sum[c] += y * load_wide(row + c * REGISTER);                                                              \
        }                                                                                                                 \
        for (int c = 0; c < COLUMNS; c++)                                                                                 \
            memcpy(out + j + c * REGISTER, &sum[c], sizeof(wide));                                                        \
        j += COLUMNS * REGISTER;                                                                                          \
    }

static void dense_of_sparse(const int32_t *index, const double *count, int64_t n_entries, const double *B, int64_t m,
                            double *out)
{
    for (int64_t j = 0; j < m;) {
        switch ((m - j) / REGISTER) {
        case 1: SPARSE_TILE(1) break;
        case 2: SPARSE_TILE(2) break;
        case 3: SPARSE_TILE(3) break;
        default: SPARSE_TILE(4)
        }
    }
}

/* out (n): number of the nearest of k centres, the first of several; k is a multiple of GROUP.  A square of a distance is
 * |point|^2 + (point . twice) + square, where twice (d, k) is -2 times the centres: the first term does not matter.  Squares of the
 * padding are infinite.  Points are in the lanes; room (d, REGISTER) receives their transpose. */
static void dense_nearest(const double *points, const double *twice, const double *square, int64_t n, int64_t d, int64_t k,
                          double *room, int32_t *out)
{
    for (int64_t i = 0; i < n; i += REGISTER) {
        const int64_t n_here = n - i < REGISTER ? n - i : REGISTER;
        for (int64_t l = 0; l < d; l++)
            for (int64_t r = 0; r < REGISTER; r++)
                room[l * REGISTER + r] = r < n_here ? points[(i + r) * d + l] : 0;
        wide least = (wide){0} + __builtin_inf();
        wide_int label = {0};
        for (int64_t c = 0; c < k; c += GROUP) {
            wide sum[GROUP] = {{0}};
            for (int64_t l = 0; l < d; l++)
                UNROLL for (int g = 0; g < GROUP; g++)
                    sum[g] += load_wide(room + l * REGISTER) * twice[l * k + c + g];
            UNROLL for (int g = 0; g < GROUP; g++) {
                const wide here = sum[g] + square[c + g];
                const wide_int less = here < least;
                least = choose(less, here, least);
                label = ((c + g) & less) | (label & ~less);
            }
        }
        for (int64_t r = 0; r < n_here; r++)
            out[i + r] = (int32_t)label[r];
    }
}

/* out (n, m): the smaller of `closest` (n) and the square of the distance of each point (n, d) from m others, of which `twice` is
 * -2 times the transpose (d, m).  squares (n) and others (m) are the squares of both. */
static void dense_closer(const double *points, const double *squares, const double *closest, const double *twice,
                         const double *others, int64_t n, int64_t d, int64_t m, double *out)
{
    dense_product(points, twice, n, d, m, out);
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < m; c += REGISTER) {
            const wide zero = {0}, limit = zero + closest[i];
            wide square = load_wide(out + i * m + c) + (squares[i] + load_wide(others + c));
            square = choose(square > zero, square, zero);
            square = choose(square < limit, square, limit);
            memcpy(out + i * m + c, &square, sizeof(wide));
        }
}
