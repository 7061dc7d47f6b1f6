/* Sums of selected rows of integers. A panel has PANEL columns: one cache line of each row. */
#if LEVEL == 3
#define PANEL_BYTES 64
#elif LEVEL == 2
#define PANEL_BYTES 32
#else
#define PANEL_BYTES 16
#endif
#define PANEL_VECTORS (int)(PANEL * sizeof(int32_t) / PANEL_BYTES)

typedef int32_t panel_lanes __attribute__((vector_size(PANEL_BYTES)));

/* sums += the picked rows of a panel; the order of integer additions does not matter */
static void gather_sum(const int32_t *panel, const uint32_t *picked, int64_t n, int32_t *sums)
{
    panel_lanes total[PANEL_VECTORS];
    UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
        total[v] = ((const panel_lanes *)sums)[v];
    for (int64_t i = 0; i < n; i++) {
        const panel_lanes *row = (const panel_lanes *)(panel + PANEL * (int64_t)picked[i]);
        UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
            total[v] += row[v];
    }
    UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
        ((panel_lanes *)sums)[v] = total[v];
}
