/* Products of matrices of doubles.  Every sum is in a fixed order.  Multiplications and additions are rounded separately, so all
 * levels return the same bits, the baseline too.  Rows of B and out have a multiple of WIDE numbers. */
typedef double wide __attribute__((vector_size(WIDE * sizeof(double))));

INLINE wide load_wide(const double *p)
{
    wide x;
    memcpy(&x, p, sizeof x);
    return x;
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
                const wide b = load_wide(B + l * m + j + c * WIDE);                                                       \
                UNROLL for (int r = 0; r < ROWS; r++)                                                                     \
                    sum[r][c] += A[(i + r) * k + l] * b;                                                                  \
            }                                                                                                             \
        for (int r = 0; r < ROWS; r++)                                                                                    \
            for (int c = 0; c < COLUMNS; c++)                                                                             \
                memcpy(out + (i + r) * m + j + c * WIDE, &sum[r][c], sizeof(wide));                                       \
    }

static void dense_product(const double *A, const double *B, int64_t n, int64_t k, int64_t m, double *out)
{
    for (int64_t j = 0; j < m;) {
        const int two = m - j >= 2 * WIDE;
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
        j += two ? 2 * WIDE : WIDE;
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
                const wide b = load_wide(B + i * m + j + c * WIDE);                                                       \
                UNROLL for (int r = 0; r < ROWS; r++)                                                                     \
                    sum[r][c] += A[i * k + l + r] * b;                                                                    \
            }                                                                                                             \
        for (int r = 0; r < ROWS; r++)                                                                                    \
            for (int c = 0; c < COLUMNS; c++)                                                                             \
                memcpy(out + (l + r) * m + j + c * WIDE, &sum[r][c], sizeof(wide));                                       \
    }

static void dense_cross(const double *A, const double *B, int64_t n, int64_t k, int64_t m, double *out)
{
    for (int64_t j = 0; j < m;) {
        const int two = m - j >= 2 * WIDE;
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
        j += two ? 2 * WIDE : WIDE;
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
                sum[c] += y * load_wide(row + c * WIDE);                                                                  \
        }                                                                                                                 \
        for (int c = 0; c < COLUMNS; c++)                                                                                 \
            memcpy(out + j + c * WIDE, &sum[c], sizeof(wide));                                                            \
        j += COLUMNS * WIDE;                                                                                              \
    }

static void dense_of_sparse(const int32_t *index, const double *count, int64_t n_entries, const double *B, int64_t m,
                            double *out)
{
    for (int64_t j = 0; j < m;) {
        switch ((m - j) / WIDE) {
        case 1: SPARSE_TILE(1) break;
        case 2: SPARSE_TILE(2) break;
        case 3: SPARSE_TILE(3) break;
        default: SPARSE_TILE(4)
        }
    }
}
